"""Interface of the engine in the worker, without its libraries, so that it can be exchanged.

`TLLM_FAKE_COMPUTE=module:Class` names another class with the methods of `Compute`.
"""

import importlib
import os
from typing import Any, NamedTuple, Protocol

_DEFAULT = "tensorrt_llm.fake.genai:GenaiCompute"


class Progress(NamedTuple):
    """New tokens of one sequence, with the token that ended it.

    Attributes:
        key: of the request.
        tokens: new ids; all ids of a beam.
        log_probs: of the tokens; None if not asked for.
        done: nothing more will come.
        index: of the beam.
    """

    key: Any
    tokens: list[int]
    log_probs: list[float] | None
    done: bool
    index: int = 0


class Compute(Protocol):
    """Runs sequences in one batch.

    Args:
        args: the arguments of `LLM` by name.
    """

    vocab_size: int

    def __init__(self, args: dict[str, Any]) -> None: ...

    def add(
        self,
        key: Any,
        prompt: list[int],
        params: Any,
        max_tokens: int,
        seed: int,
        adapter: Any = None,
    ) -> None:
        """Begin a sequence; it ends with `params.end_id`, a stop id or after `max_tokens`.

        `adapter` is a `LoRARequest`; GenAI's engine has none.
        """

    def cancel(self, key: Any) -> None: ...

    def step(self) -> list[Progress]:
        """Run one step of the batch."""

    def rest(self) -> None:
        """Free what only running sequences need."""


def load_compute(args: dict[str, Any]) -> Compute:
    module, _, name = os.environ.get("TLLM_FAKE_COMPUTE", _DEFAULT).partition(":")
    compute: Compute = getattr(importlib.import_module(module), name)(args)
    return compute
