"""How tokens are chosen: LMI's `do_sample` and its defaults.

The engine is greedy where neither top_k nor top_p is set, whatever the temperature. So whoever asks
for a temperature alone, which LMI takes for a wish to draw since 0.32, gets a top_p of 1.
"""

from __future__ import annotations

from dataclasses import replace

from trtllm_truss.protocols.lmi.parameters import Parameters
from trtllm_truss.requests import Sampling

_GREEDY = Sampling(top_k=1)
_DRAWING = Sampling(temperature=0.8, top_k=5, top_p=0.85)
_UNLIMITED = 1.0


def sampling_from(parameters: Parameters) -> Sampling:
    """What the parameters mean for the engine."""
    return replace(
        _choice(parameters),
        repetition_penalty=parameters.repetition_penalty,
        presence_penalty=parameters.presence_penalty,
        frequency_penalty=parameters.frequency_penalty,
        length_penalty=parameters.length_penalty,
        min_tokens=parameters.min_length,
        seed=parameters.seed,
    )


def _choice(parameters: Parameters) -> Sampling:
    """Greedy unless something asks for drawing."""
    temperature, top_k, top_p = parameters.temperature, parameters.top_k, parameters.top_p
    asked = parameters.do_sample
    if asked is None:
        asked = bool(temperature or top_k or top_p)
    if not asked or temperature == 0:
        return _GREEDY
    if parameters.do_sample:
        return Sampling(
            temperature=_DRAWING.temperature if temperature is None else temperature,
            top_k=_DRAWING.top_k if top_k is None else top_k,
            top_p=_DRAWING.top_p if top_p is None else top_p or _UNLIMITED,
        )
    return Sampling(
        temperature=temperature,
        top_k=top_k or None,
        top_p=top_p or (None if top_k else _UNLIMITED),
    )
