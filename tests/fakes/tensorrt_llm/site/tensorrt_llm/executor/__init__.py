"""Errors, and the request of an adapter."""

from tensorrt_llm.fake.errors import LoRARequest, RequestError
from tensorrt_llm.fake.versions import IS_1_3

__all__ = ["LoRARequest", "RequestError"]

if IS_1_3:
    from tensorrt_llm.fake.errors import EngineDeadError

    __all__ += ["EngineDeadError"]
