"""The choice of tokens: what a request means, and how NVIDIA's runtime reads inputs.

Both are a `Decoding`, and `inputs_for` connects them: the runtime must read from the inputs what
the request means, in each release (`tests/decoding`). All code that tests whether a request is
greedy uses this module. Triton's processes import this module, so it imports no library.

The runtime's rules, with their sources in NVIDIA/TensorRT-LLM unless another repository is named:

1. The backend drops a `runtime_top_p` of 0 or less: ``getSamplingConfigFromTensors`` of
   inflight_batcher_llm/src/utils.cc in triton-inference-server/tensorrtllm_backend, v0.10.0:384 to
   v0.19.0:560, and of triton_backend/inflight_batcher_llm/src/utils.cc from 0.20 to 1.2. Older
   releases hand the tensors to a GptManager, whose source is closed; 0 is the default there too.
2. The constructor of ``executor::SamplingConfig`` checks ranges: ``checkTopK`` to ``checkMinP`` of
   cpp/tensorrt_llm/executor/samplingConfig.cpp at 3585984b (1.2).
3. ``runtime::SamplingConfig::validate``, "Detect greedy sampling and overwrite params": a
   temperature of 0 becomes 1; `top_k` becomes 1, and `top_p` 1, but only where it was sent. Eagle's
   layer still sees the 0, and needs it to be greedy (``originalTemperature``; "Allow temp = 0" of
   layers/eagleDecodingLayer.cpp). cpp/include/tensorrt_llm/runtime/samplingConfig.h, since
   0.11.0.dev20240528; the same at be9cd719 (0.12), be178810 (0.17) and 09e2cf77 (after 0.20),
   absent at 9bd15f19 (0.10.0).
4. What was not sent is temperature 1, `top_k` 0 and `top_p` 0: ``DefaultDecodingParams`` of
   cpp/tensorrt_llm/layers/defaultDecodingParams.h at 1020a8d7.
5. Of a `top_k` of 0 with a `top_p` of 0, ``regularizeTopKTopP`` makes a `top_k` of 1; of a `top_k`
   with a `top_p` of 0, one with a `top_p` of 1. Requests with a `top_k` are sampled by the layer
   for it, others by that for `top_p`, which draws from all tokens if that is 1:
   cpp/tensorrt_llm/kernels/samplingTopKKernels.h and layers/top[KP]SamplingLayer.cpp, near 0.14 to
   0.20. layers/samplingLayer.cpp of 2026 is alike.
6. Beam search divides logits by the temperature, and reads neither limits nor the seed:
   ``batchApplyPenalty`` of cpp/tensorrt_llm/kernels/penaltyKernels.cu at 249d93d5;
   ``DecodingMode::BeamSearch`` of cpp/include/tensorrt_llm/executor/types.h has no min-p.

No release's backend has an input for `min_p` (``InputFieldsNames`` of utils.h, 0.10 to 1.2).
"""

from __future__ import annotations

from typing import Any, NamedTuple

from trtllm_truss.request_fields import LEAST, SamplingFields

LEAST_TEMPERATURE = 1e-5
"""Lower temperatures are greedy.

Those below 1e-45 are 0 in FP32, which the runtime replaces with 1.

NVIDIA's PyTorch sampler does not divide by less either: ``top_k_top_p_sampling_batch`` of
tensorrt_llm/_torch/pyexecutor/sampling_utils.py, near 1.2.
"""
_LARGEST_TOP_K = 1024  # TOP_K_MAX of samplingTopKKernels.h


class Decoding(NamedTuple):
    """A way to choose tokens.

    Attributes:
        beams: width of a beam search; 1 for none.
        top_k: number of likeliest tokens to sample from; 0 for all, 1 is greedy.
        top_p: cumulative probability of these tokens; 1 for all.
        min_p: least probability, relative to the likeliest token's.
    """

    beams: int = 1
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0

    @property
    def is_greedy(self) -> bool:
        """Return True if each token is the likeliest one."""
        return self.beams == 1 and self.top_k == 1


GREEDY = Decoding(top_k=1)


def meant(sampling: SamplingFields[Any], beams: int = 1) -> Decoding:
    """Return what a request means.

    A temperature, `top_p`, `min_p` or a `top_k` above 1 requests sampling; otherwise decoding is
    greedy. The limits have no meaning for beam search, which does not sample.
    """
    temperature, top_k, top_p, min_p = _choice(sampling)
    is_cold = temperature is not None and temperature < LEAST_TEMPERATURE
    if beams > 1:
        return Decoding(beams, 1.0 if temperature is None or is_cold else temperature)
    asks = temperature is not None or top_p is not None or (top_k or 0) > 1 or bool(min_p)
    picks_one = top_k == 1 or (top_p is not None and top_p <= LEAST) or min_p == 1
    if not asks or is_cold or picks_one:
        return GREEDY
    return Decoding(
        temperature=1.0 if temperature is None else temperature,
        top_k=top_k or 0,
        top_p=1.0 if top_p is None else top_p,
        min_p=min_p or 0.0,
    )


def inputs_for(decoding: Decoding, *, zero_is_replaced: bool = True) -> dict[str, float | None]:
    """Return the values to send, by attribute of `Sampling`; None is not sent.

    Args:
        zero_is_replaced: the release has rule 3 (the fact `replaces_zero_temperature`).
    """
    values: dict[str, float | None] = dict.fromkeys(("temperature", "top_k", "top_p", "min_p"))
    if decoding.is_greedy:
        return {**values, "top_k": 1, "temperature": 0.0 if zero_is_replaced else None}
    if decoding.beams > 1:
        return {**values, "temperature": decoding.temperature}
    needs_top_p = decoding.top_p < 1 or not decoding.top_k
    return {
        "temperature": decoding.temperature,
        "top_k": decoding.top_k or None,
        "top_p": decoding.top_p if needs_top_p else None,
        "min_p": decoding.min_p or None,
    }


def in_runtime(
    sampling: SamplingFields[Any], beams: int = 1, *, zero_is_replaced: bool = True
) -> Decoding:
    """Return the decoding that NVIDIA's runtime derives from inputs.

    None is an input that was not sent.

    Args:
        zero_is_replaced: the release has rule 3 (the fact `replaces_zero_temperature`).

    Raises:
        ValueError: it refuses a value; the message is its text.
    """
    temperature, top_k, top_p, min_p = _choice(sampling)
    if top_p is not None and top_p <= 0:
        top_p = None
    for is_right, text in (
        (beams > 0, "beamWidth > 0"),
        (top_k is None or top_k >= 0, "topK.value() >= 0"),
        (top_p is None or top_p <= 1, "topP.value() <= 1.f"),
        (temperature is None or temperature >= 0, "temperature.value() >= 0.f"),
        (min_p is None or 0 <= min_p <= 1, "minP.value() >= 0.f && minP.value() <= 1.0f"),
    ):
        if not is_right:
            raise ValueError(f"Assertion failed: {text}")
    if temperature == 0 and zero_is_replaced:
        temperature = None
        top_k = top_k if top_k is None else 1
        top_p = top_p if top_p is None else 1.0
    if temperature is None:
        temperature = 1.0
    if beams > 1:
        return Decoding(beams, temperature)
    chosen, sum_of = min(top_k or 0, _LARGEST_TOP_K), top_p or 0.0
    if chosen == 1 or not (chosen or sum_of):
        return GREEDY
    return Decoding(1, temperature, chosen, sum_of or 1.0, min_p or 0.0)


def _choice(
    sampling: SamplingFields[Any],
) -> tuple[float | None, int | None, float | None, float | None]:
    return sampling.temperature, sampling.top_k, sampling.top_p, sampling.min_p
