"""The registered classes by architecture: `MODEL_CLASS_MAPPING` of 1.0 to 1.2.1."""

from tensorrt_llm.fake.otherwise import OTHERWISE
from tensorrt_llm.fake.versions import RELEASE
from trtllm_truss.engines.checkpoint.weights import ARCHITECTURES

_ROWS = {"architectures-of-1.0": "LlamaForCausalLM", "architectures-of-1.2": "MiniMaxM2ForCausalLM"}
_MISSING = {_ROWS[row] for row in OTHERWISE & _ROWS.keys()}

MODEL_CLASS_MAPPING = {
    name: object
    for name, row in ARCHITECTURES.items()
    if row.since <= RELEASE and name not in _MISSING
}
