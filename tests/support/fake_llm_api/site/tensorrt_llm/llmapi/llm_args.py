"""The configurations of CUDA graphs and of drafts.

Source: `_generate_cuda_graph_batch_sizes` of llmapi/llm_args.py, 1.2.1.
"""

from types import SimpleNamespace

from tensorrt_llm.fake.argument_classes import read_sparse_attention
from tensorrt_llm.fake.drafts import make_drafts, needs_from_dict
from tensorrt_llm.fake.llm_args import CLASSES, TorchLlmArgs
from tensorrt_llm.fake.otherwise import OTHERWISE
from tensorrt_llm.fake.versions import IS_1_3

__all__ = ["CudaGraphConfig", "DecodingBaseConfig", "TorchLlmArgs"]

_LARGEST_UNPADDED = 128

globals().update({name: made for name, made in CLASSES.items() if name.endswith("DecodingConfig")})


class DecodingBaseConfig:
    model_fields = CLASSES["DecodingBaseConfig"].model_fields

    if needs_from_dict():

        @classmethod
        def from_dict(cls, data):
            return make_drafts(data)


if not IS_1_3 and CLASSES["sparse"]:

    class BaseSparseAttentionConfig:
        @classmethod
        def from_dict(cls, data):
            read_sparse_attention(CLASSES, data)
            return SimpleNamespace(**data)


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
