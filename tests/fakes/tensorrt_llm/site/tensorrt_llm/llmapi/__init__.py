"""Names of the LLM API."""

from tensorrt_llm.executor import RequestError
from tensorrt_llm.fake.llm import LLM
from tensorrt_llm.fake.llm_args import TorchLlmArgs
from tensorrt_llm.fake.sampling import GuidedDecodingParams, SamplingParams

__all__ = ["LLM", "GuidedDecodingParams", "RequestError", "SamplingParams", "TorchLlmArgs"]
