"""Request ids of the ``tensorrtllm`` backend.

Up to 0.9 an id is the number that its text begins with (``stoul``): 0.7 refuses a text without one,
0.8 and 0.9 take its hash. A number in flight is refused, and ``stop`` ends the request that has the
number, whoever sent it. Later releases take any text. Source: ``inflight_batcher_llm/src/utils.cc:
142-174`` and ``work_items_queue.cc:59`` in triton-inference-server/tensorrtllm_backend, v0.7.0 to
v0.9.0; ``model_instance_state.cc`` (``mTritonRequestIdToRequestIds``) from v0.10.0 on.
"""

from __future__ import annotations

import secrets

from trtllm_truss.releases.versions import release

_ANY_TEXT_SINCE = (0, 10)


def takes_numbers_only(version: str | None) -> bool:
    """Return True for TensorRT-LLM versions that read ids as numbers; None is unknown."""
    return version is not None and release(version) < _ANY_TEXT_SINCE


def random_number() -> str:
    """Return an id that every release takes, and that no other request has."""
    return str(secrets.randbelow(2**64 - 1) + 1)
