"""The requests that an engine serves before it is ready, one per promised feature.

Settings that an engine cannot keep then fail the start, by name, instead of a caller's request:
beams, adapters, guides, and a stream longer than one step.
"""

from __future__ import annotations

from collections.abc import Iterator

from trtllm_truss.engines.engine import Engine
from trtllm_truss.request_fields import Sampling
from trtllm_truss.requests import Guide
from trtllm_truss.settings.model import Settings
from trtllm_truss.triton.client.client import Trial
from trtllm_truss.triton.client.engine_messages import EngineRequest

_TOKENS = 3
_SAMPLED = Sampling(temperature=1.0, top_p=0.9)
"""The sampling of a trial request.

TensorRT-LLM's Torch sampler uses FlashInfer's kernels from 1.2 on unless
``disable_flashinfer_sampling`` is set, and FlashInfer may compile them for the first sampled
request: during a start its time limit applies, later that of a hang.
"""

_GUIDE = Guide("json_schema", '{"type": "boolean"}')
_BEAMS, _GUIDES = "runtime.max_beam_width", "runtime.guided_decoding_backend"


def trials_of(engine: Engine, settings: Settings, prompt_id: int, end_id: int) -> Iterator[Trial]:
    """Yield the requests, the plain one first.

    Args:
        prompt_id: the whole prompt; any id in the vocabulary.
        end_id: the token that finishes a choice; beams and guides need one.
    """
    width, limit = engine.first_beam_width(settings), engine.beam_limit(settings)
    longest = max(1, min(_TOKENS, engine.max_sequence_tokens - 1))

    def trial(
        setting: str, max_tokens: int = 1, beams: int = width, *, ends: bool = False, **more: object
    ) -> Trial:
        has_beams = beams > 1
        request = EngineRequest(
            request_id=f"warm-up {setting}".rstrip(),
            input_ids=[prompt_id],
            max_tokens=max_tokens,
            end_id=end_id if has_beams or ends else None,
            beam_width=beams,
            streaming=not has_beams,
            sampling=Sampling() if has_beams else _SAMPLED,
            **more,  # type: ignore[arg-type]
        )
        return Trial(setting, request)

    yield trial(f"{_BEAMS} {width}" if width > 1 else "", longest)
    if width == 1 < limit and settings.runtime.max_beam_width:
        yield trial(f"{_BEAMS} {limit}", longest, limit)
    if engine.takes_adapters:
        for number, name in enumerate(settings.lora_adapters, 1):
            yield trial(f"lora_adapters.{name}", lora_task_id=number)
    # The CPU engine has guides whatever the settings are.
    if width == 1 and engine.uses_gpus and (backend := engine.guided_decoding_backend(settings)):
        yield trial(f"{_GUIDES} {backend}", longest, ends=True, guide=_GUIDE)
