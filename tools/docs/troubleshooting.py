"""The tables of docs/troubleshooting.md; the other text is written by hand."""

from __future__ import annotations

from pathlib import Path

from tools.docs.tables import table

from trtllm_builder.run import describe_failure
from trtllm_truss.triton.server.known_errors import KNOWN_ERRORS, find_known_error

_KV_CACHE_FRAME = "tensorrt_llm::batch_manager::kv_cache_manager::BlockManager::allocatePools()"

ENGINE_LINES: dict[str, tuple[str, ...]] = {
    "config_placeholder": ("Expected integer, got: $",),
    "backend_missing": ("unable to find backend library for backend 'tensorrtllm'",),
    "backend_mismatch": (
        "libtriton_tensorrtllm.so: undefined symbol: _ZNK12tensorrt_llm8executor",
    ),
    "library_missing": ("libnvinfer_plugin_tensorrt_llm.so.9: cannot open shared object file",),
    "wrong_python": ("ModuleNotFoundError: No module named '_socket'",),
    "module_missing": ("ModuleNotFoundError: No module named 'openvino'",),
    "tensorrt_llm_missing": ("ModuleNotFoundError: No module named 'tensorrt_llm'",),
    "architecture_unknown": (
        "ValueError: Unknown architecture for AutoModelForCausalLM: GraniteForCausalLM",
    ),
    "wrong_gpu": ("incompatible device, expecting compute 9.0 got compute 8.9, please rebuild",),
    "tensorrt_mismatch": ("expecting library version 10.11.0.33 got 10.3.0.26, please rebuild",),
    "engine_unreadable": ("Version tag does not match. Note: Current Version: 228",),
    "engine_too_new": (
        "[json.exception.out_of_range.403] key 'rotary_base' not found",
        "failed to load 'tensorrt_llm' version 1",
    ),
    "world_size": ("MPI worldSize is expected to be equal to tp*pp*cp",),
    "rank_file_missing": ("Error opening engine file: /engine/rank1.engine",),
    "engine_folder_missing": ("Cannot find engine config file /engine/config.json",),
    "too_few_gpus": ("CUDA runtime error in cudaSetDevice(device): invalid device ordinal",),
    "driver": ("CUDA driver version is insufficient for CUDA runtime version",),
    "kv_cache_memory": ("CUDA runtime error in ::cudaMallocAsync: out of memory", _KV_CACHE_FRAME),
    "gpu_memory": ("OutOfMemory (Requested size was 16106127360 bytes.)",),
    "shared_memory": ("Error: failed to extend /dev/shm/nccl-Xk2b1a to 9637892 bytes",),
    "disk_full": ("[Errno 28] No space left on device",),
    "port": ("failed to start HTTP service: Unavailable - Socket '127.0.0.1:8000' already in use",),
    "paged_context_fmha": ("model has to be built with paged context FMHA support",),
    "beam_width": ("max_beam_width 4 is larger than the engine's 1",),
    "setting_refused": ("Assertion failed: 0 < freeGpuMemoryFraction <= 1",),
    "cuda": ("an illegal memory access was encountered",),
    "rank_aborted": ("MPI_ABORT was invoked on rank 1 in communicator MPI_COMM_WORLD",),
    "llm_api": ("[llm_api] the engine failed: worker process python3 (171) ended.",),
    "backend_ended": ("kill-parent-on-death: the backend's process ended",),
}
"""Log lines by cause: the recognised line, then another required one, if any."""


BUILD_LINES = (
    "torch.OutOfMemoryError: CUDA out of memory.",
    "OSError: [Errno 28] No space left on device",
    "terminate called after throwing an instance of 'std::bad_alloc'",
    "ModuleNotFoundError: No module named 'modelopt'",
    "ModuleNotFoundError: No module named 'evaluate'",
    "error: unrecognized arguments: --calib_size 32",
    "ConnectionError: Couldn't reach 'cnn_dailymail' on the Hub",
    "NotImplementedError: Unsupported model architecture: LlamaForCausalLM",
    "RuntimeError: CUDA error: no kernel image is available for execution on the device",
)
"""A recognised log line for each known failure of a build step."""


def troubleshooting_tables() -> dict[str, str]:
    """Return the tables by their names in the page."""
    engine = [[f"`{lines[0]}`", _engine_sentence(name)] for name, lines in _by_cause().items()]
    build = [[f"`{line}`", _build_sentence(line)] for line in BUILD_LINES]
    heads = ["the log holds", "cause and remedy"]
    return {"engine": table(heads, engine), "build": table(heads, build)}


def _by_cause() -> dict[str, tuple[str, ...]]:
    """Order the lines like the causes; raise KeyError for a cause without a line."""
    return {cause.name: ENGINE_LINES[cause.name] for cause in KNOWN_ERRORS}


def _engine_sentence(name: str) -> str:
    found = find_known_error(ENGINE_LINES[name])
    assert found is not None, f"no cause explains the line of {name}"
    return found[0]


def _build_sentence(line: str) -> str:
    """Return the explanation in a failure's message, between the line and the log's path."""
    explained = describe_failure("STEP", 1, [line], Path("LOG")).partition(f"{line} ")[2]
    return f"{explained.rpartition('. ')[0]}."
