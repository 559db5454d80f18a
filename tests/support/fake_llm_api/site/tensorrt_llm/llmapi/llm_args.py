"""The configurations of CUDA graphs and of drafts.

Source: `_generate_cuda_graph_batch_sizes` of llmapi/llm_args.py, 1.2.1.
"""

from tensorrt_llm.fake.drafts import DecodingBaseConfig
from tensorrt_llm.fake.llm_args import TorchLlmArgs
from tensorrt_llm.fake.otherwise import OTHERWISE

__all__ = ["CudaGraphConfig", "DecodingBaseConfig", "TorchLlmArgs"]

_LARGEST_UNPADDED = 128


class CudaGraphConfig:
    @staticmethod
    def _generate_cuda_graph_batch_sizes(max_batch_size, enable_padding):
        if enable_padding:
            sizes = [1, 2, 4, *range(8, _LARGEST_UNPADDED + 1, 8)]
        else:
            sizes = [*range(1, 32), 32, 64, _LARGEST_UNPADDED]
        sizes = [size for size in sizes if size <= max_batch_size]
        if "padded-graphs" in OTHERWISE:
            return sizes
        return sorted({*sizes, max_batch_size})
