"""`model_metadata.build.quantization`: one section per method."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from trtllm_truss.validation import Strict


class SmoothQuant(Strict):
    """INT8 weights and activations; calibrated by the checkpoint's convert script."""

    method: Literal["smoothquant"]
    alpha: float = Field(
        0.8,
        gt=0,
        le=1,
        description="Share of the quantization difficulty moved from activations to weights.",
    )
    per_token: bool = Field(
        False, description="A scale for each token, computed while serving: slower, more accurate."
    )
    per_channel: bool = Field(
        False, description="A scale for each channel of the weights: slower, more accurate."
    )


class Awq(Strict):
    """INT4 weights, scaled by activations; calibrated by `quantize.py`."""

    method: Literal["awq"]
    format: Literal["int4_awq", "w4a8_awq"] = Field(
        "int4_awq", description="Activations in 16 bits, or (`w4a8_awq`, Ada and Hopper) in FP8."
    )
    calib_size: int = Field(
        32, ge=1, le=32, description="Calibration samples; the limit is that of `quantize.py`."
    )
    calib_batch_size: int = Field(1, ge=1, le=1024, description="Samples of one calibration batch.")
    block_size: Literal[32, 64, 128] = Field(
        128, description="Weights per scale: fewer are more accurate and need more memory."
    )


class Fp8(Strict):
    """FP8 weights and activations; calibrated by `quantize.py`. Ada, Hopper and later."""

    method: Literal["fp8"]
    calib_size: int = Field(512, ge=1, le=100_000, description="Calibration samples.")
    calib_batch_size: int = Field(1, ge=1, le=1024, description="Samples of one calibration batch.")


class WeightOnly(Strict):
    """INT8 or INT4 weights by rounding, without calibration; also for CPU engines."""

    method: Literal["int8_weight_only", "int4_weight_only"]


Quantization = Annotated[SmoothQuant | Awq | Fp8 | WeightOnly, Field(discriminator="method")]

METHOD_SECTIONS: dict[str, type[Strict]] = {
    **{"smoothquant": SmoothQuant, "awq": Awq, "fp8": Fp8},
    **dict.fromkeys(("int8_weight_only", "int4_weight_only"), WeightOnly),
}
"""The section of each method."""
