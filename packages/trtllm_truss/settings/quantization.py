"""`model_metadata.build.quantization`: one section per method, told apart by `method`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from trtllm_truss.validation import Strict


class SmoothQuant(Strict):
    """INT8 weights and activations; calibrated by the checkpoint's convert script."""

    method: Literal["smoothquant"]
    alpha: float = Field(
        0.8, gt=0, le=1, description="How much of the difficulty moves from activations to weights."
    )
    per_token: bool = Field(
        False, description="A scale for each token, computed while serving: slower, more accurate."
    )
    per_channel: bool = Field(
        False, description="A scale for each channel of the weights: slower, more accurate."
    )


class Awq(Strict):
    """INT4 weights, chosen by how activations use them; calibrated by `quantize.py`."""

    method: Literal["awq"]
    format: Literal["int4_awq", "w4a8_awq"] = Field(
        "int4_awq", description="Activations in 16 bits, or (`w4a8_awq`, Ada and Hopper) in FP8."
    )
    calib_size: int = Field(
        32, ge=1, le=32, description="Samples to calibrate with; `quantize.py` takes no more."
    )
    calib_batch_size: int = Field(
        1, ge=1, le=1024, description="Samples that are calibrated at once."
    )
    block_size: Literal[32, 64, 128] = Field(
        128, description="Weights that share one scale: fewer are more accurate and larger."
    )


class Fp8(Strict):
    """FP8 weights and activations; calibrated by `quantize.py`. Ada, Hopper and later."""

    method: Literal["fp8"]
    calib_size: int = Field(512, ge=1, le=100_000, description="Samples to calibrate with.")
    calib_batch_size: int = Field(
        1, ge=1, le=1024, description="Samples that are calibrated at once."
    )


class WeightOnly(Strict):
    """INT8 or INT4 weights by rounding alone, no calibration; also for engines of the CPU."""

    method: Literal["int8_weight_only", "int4_weight_only"]


Quantization = Annotated[SmoothQuant | Awq | Fp8 | WeightOnly, Field(discriminator="method")]

METHOD_SECTIONS: dict[str, type[Strict]] = {
    **{"smoothquant": SmoothQuant, "awq": Awq, "fp8": Fp8},
    **dict.fromkeys(("int8_weight_only", "int4_weight_only"), WeightOnly),
}
"""The section of each method."""
