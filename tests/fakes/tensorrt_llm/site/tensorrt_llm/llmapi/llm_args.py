"""The configurations of drafts and of sparse attention."""

from types import SimpleNamespace

from tensorrt_llm.fake.argument_classes import read_sparse_attention
from tensorrt_llm.fake.drafts import make_drafts
from tensorrt_llm.fake.llm_args import CLASSES, TorchLlmArgs
from tensorrt_llm.fake.versions import IS_1_3

__all__ = ["DecodingBaseConfig", "TorchLlmArgs"]

globals().update({name: made for name, made in CLASSES.items() if name.endswith("DecodingConfig")})


class DecodingBaseConfig:
    model_fields = CLASSES["DecodingBaseConfig"].model_fields

    if not IS_1_3:

        @classmethod
        def from_dict(cls, data):
            return make_drafts(data)


if not IS_1_3 and CLASSES["sparse"]:

    class BaseSparseAttentionConfig:
        @classmethod
        def from_dict(cls, data):
            read_sparse_attention(CLASSES, data)
            return SimpleNamespace(**data)
