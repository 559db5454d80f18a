"""Errors, and the request of an adapter."""

from dataclasses import dataclass
from pathlib import Path


class RequestError(RuntimeError):
    """The error of one request."""


class EngineDeadError(RuntimeError):
    """The engine is gone (1.3)."""


@dataclass(slots=True)
class LoRARequest:
    lora_name: str
    lora_int_id: int
    lora_path: str = ""
    lora_ckpt_source: str = "hf"

    def __post_init__(self):
        if not Path(self.lora_path).exists():
            raise ValueError(f"lora_path ({self.lora_path}) does not exist.")
