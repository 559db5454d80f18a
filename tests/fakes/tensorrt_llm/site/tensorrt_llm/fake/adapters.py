"""LoRA adapters as the worker reads them: by the names of their weights.

Sources in NVIDIA/TensorRT-LLM: `iterate_hf_lora` and `load_from_hf` of tensorrt_llm/lora_manager.py
at 007e181b (near 1.0), near 1.2, and of _torch/peft/lora/{loaders,manager}.py late in 1.3.0, which
skips modules that it does not know; `_enqueue_request` of executor/base_worker.py, which reads an
adapter outside of its `try`, and inside of it since pull request 13517 (May 2026);
`PeftCacheManager.add_request_peft` of _torch/pyexecutor/resource_manager.py, near 1.1, which reads
one again that the cache of `max_cpu_loras` has dropped.
"""

import json
from collections import OrderedDict
from pathlib import Path

from safetensors import safe_open

from tensorrt_llm.fake.errors import RequestError
from tensorrt_llm.fake.versions import IS_1_3, RELEASE

_NAMES = {
    "attn_q": "q_proj",
    "attn_k": "k_proj",
    "attn_v": "v_proj",
    **({"attn_qkv": "qkv_proj"} if RELEASE >= (1, 2) else {}),
    "attn_dense": "o_proj",
    "mlp_h_to_4h": "gate_proj",
    "mlp_4h_to_h": "down_proj",
    "mlp_gate": "up_proj",
    "mlp_gate_up": "gate_up_proj",
    "moe_h_to_4h": "w1",
    "moe_4h_to_h": "w2",
    "moe_gate": "w3",
    "moe_router": "gate",
}
_ENDS = {
    ".lora_A.weight": "in",
    ".lora_B.weight": "out",
    ".lora_magnitude_vector": "magnitude",
    ".weight_m_wdecomp.weight": "magnitude",
}


class Adapters:
    """The adapters that the worker has read.

    Args:
        args: the arguments of `LLM` by name.
    """

    def __init__(self, args):
        config = args["lora_config"] or {}
        self._most = config.get("max_cpu_loras") or 4
        self._names = config.get("trtllm_modules_to_hf_modules") or _NAMES
        self._here = OrderedDict()

    def use(self, request):
        """Read an adapter that is not here; drop the one that was used least lately."""
        number = request.lora_int_id
        if number not in self._here:
            if IS_1_3:
                try:
                    self._here[number] = read(Path(request.lora_path), self._names)
                except Exception as error:
                    raise RequestError(f"Failed to load LoRA adapter: {error}") from error
            else:
                self._here[number] = read(Path(request.lora_path), self._names)
        self._here.move_to_end(number)
        if len(self._here) > self._most:
            self._here.popitem(last=False)


def read(folder, known=_NAMES):
    """Return the matrices by decoder layer, module and expert."""
    config = json.loads((folder / "adapter_config.json").read_text())
    with safe_open(folder / "adapter_model.safetensors", "np") as file:
        shapes = {name: file.get_slice(name).get_shape() for name in file.keys()}  # noqa: SIM118
    found = _by_layer(shapes, {*known.values()})
    float(config["lora_alpha"]), int(config["r"])  # both must be there
    for place, sides in found.items():
        if missing := {"in", "out"} - sides.keys():
            raise ValueError(f"Layer {place} is missing required {missing} matrices")
    return found


def _by_layer(shapes, modules):
    found = {}
    for name, shape in shapes.items():
        match = _split(name)
        if match is None:
            if "lm_head" not in name and "embed_tokens" not in name:
                raise KeyError(f"unsupported key {name} from HF LoRA weights")
            continue
        layer, prefix, module, expert, side = match
        if f"{prefix}.{module}" in modules:
            module = f"{prefix}.{module}"
        if module not in modules:
            if RELEASE >= (1, 3, 0, 8):
                continue
            raise AssertionError(f"hf_module {module} is not in supported list {modules}")
        found.setdefault((layer, module, expert), {})[side] = shape
    return found


def _split(name):
    """Return the layer, the part of it, the module, the expert if any, and the matrix's side.

    The last number that is followed by one of `part.module`, `part.two.words` and
    `part.experts.7.module` is the layer's.
    """
    end = next((end for end in _ENDS if name.endswith(end)), None)
    if end is None:
        return None
    words = name.removesuffix(end).split(".")
    for place in range(len(words) - 3, 0, -1):
        rest = words[place + 1 :]
        if not words[place].isdecimal() or not all(word.isidentifier() for word in rest[:2]):
            continue
        part, *module = rest
        if len(module) == 3 and module[1].isdecimal():
            return int(words[place]), part, module[2], int(module[1]), _ENDS[end]
        if len(module) <= 2:
            return int(words[place]), part, ".".join(module), None, _ENDS[end]
    return None
