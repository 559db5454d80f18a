"""Known errors of engines that fail to start, as data: log pattern, reason and remedy.

The texts are those of TensorRT-LLM 0.7 to 1.2, TensorRT 9 and 10, CUDA, NCCL, Open MPI 4 and 5 and
Triton, taken from their sources, from their users' reports and from servers made to fail.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from trtllm_truss.engines.images import IMAGES, PINNED_IMAGE, Image

Sentence = str | Callable[[re.Match[str]], str]


@dataclass(frozen=True, slots=True)
class KnownError:
    """One known reason.

    Attributes:
        name: identifier for tests and metrics.
        sentence: reason and remedy; ``{name}`` is a group of the pattern.
        context: pattern that another line must match, for error lines that are ambiguous alone.
    """

    name: str
    pattern: re.Pattern[str]
    sentence: Sentence
    context: re.Pattern[str] | None = None

    def explain(self, match: re.Match[str]) -> str:
        if callable(self.sentence):
            return self.sentence(match)
        return self.sentence.format(**match.groupdict())


def find_known_error(lines: Sequence[str]) -> tuple[str, str] | None:
    """Return the sentence and line of the most basic known error in a log, or None.

    A log runs from the cause to its consequences, and every rank repeats it; so the order of
    :data:`KNOWN_ERRORS` takes precedence over the order of lines.
    """
    for cause in KNOWN_ERRORS:
        if cause.context is not None and not any(cause.context.search(line) for line in lines):
            continue
        for line in lines:
            if match := cause.pattern.search(line):
                return cause.explain(match), line
    return None


def _known_error(
    name: str, pattern: str, sentence: Sentence, context: str | None = None
) -> KnownError:
    other = None if context is None else re.compile(context, re.I)
    return KnownError(name, re.compile(pattern, re.I), sentence, other)


def _image_with_tensorrt(version: str) -> Image | None:
    """Return the newest image whose TensorRT has the same first three version numbers."""
    wanted = version.split(".")[:3]
    images = [i for i in IMAGES if i.tensorrt is not None and i.tensorrt.split(".")[:3] == wanted]
    return images[-1] if images else None


def _other_tensorrt(match: re.Match[str]) -> str:
    image = _image_with_tensorrt(match["engine"])
    remedy = f"use the image {image.name}" if image else "use an image with that version"
    return (
        f"The engine was built with TensorRT {match['engine']}, and this is {match['here']}; "
        f"{remedy}, or build the engine with this one."
    )


def _missing_backend(match: re.Match[str]) -> str:
    if match["backend"].startswith("$"):
        return (
            f"config.pbtxt still holds the placeholder {match['backend']}; fill it in, or have "
            "the repository rendered."
        )
    return (
        f"This server has no backend {match['backend']}; run inside the image of config.yaml "
        "(base_image.image), or set TRITON_BACKEND_DIRECTORY to a folder that holds it."
    )


_MODULES_OF_PYTHON = "|".join(map(re.escape, sorted(sys.stdlib_module_names)))
_OUT_OF_MEMORY = (
    r"cuda\w* .*out of memory|\(out of memory\)|OutOfMemory|GPU memory .*could not be allocated"
    r"|cudaErrorMemoryAllocation"
)

KNOWN_ERRORS: tuple[KnownError, ...] = (
    _known_error(
        "config_placeholder",
        r"(expected \w+, got: \$|placeholder (?P<name>\$\{\w*\})|unfilled \$\{)",
        "config.pbtxt still holds a placeholder ${{…}}; fill it in, or have the repository "
        "rendered.",
    ),
    _known_error(
        "backend_missing",
        r"unable to find backend library for backend '(?P<backend>[^']*)'",
        _missing_backend,
    ),
    _known_error(
        "backend_mismatch",
        r"(?P<library>[\w.+-]+\.so[\w.]*): undefined symbol",
        "{library} and the TensorRT-LLM libraries are of different versions; use one "
        f"image as it is, such as {PINNED_IMAGE.name}.",
    ),
    _known_error(
        "library_missing",
        r"(?P<library>[\w.+-]+\.so[\w.]*): cannot open shared object file",
        f"The library {{library}} is not here; run inside {PINNED_IMAGE.name}, with its GPU "
        "driver if that is what is missing (libcuda, libnvidia-ml).",
    ),
    _known_error(
        "tensorrt_llm_missing",
        r"ModuleNotFoundError: No module[^']*'tensorrt_llm'",
        "The Python that runs Triton's backends has no TensorRT-LLM; run inside "
        f"{IMAGES[-1].name}, or put the folder of the `python3` that has it first on PATH.",
    ),
    _known_error(
        "wrong_python",
        rf"ModuleNotFoundError: No module[^']*'(?P<module>({_MODULES_OF_PYTHON})(\.[\w.]+)?)'",
        "The wrong Python runs Triton's Python backends: it lacks {module}, a part of Python "
        "itself; put the folder of the `python3` that they need first on PATH.",
    ),
    _known_error(
        "module_missing",
        r"(ModuleNotFoundError: No module|ImportError: cannot import name)[^']*'(?P<module>[^']+)",
        "A Python backend needs {module}, which is not installed for the Python that runs it; "
        "add its package to the requirements.",
    ),
    _known_error(
        "architecture_unknown",
        r"Unknown architecture for AutoModelForCausalLM: (?P<architecture>\w+)",
        "This TensorRT-LLM does not load {architecture}; use the image that `trtllm-truss check` "
        "names, or another checkpoint.",
    ),
    _known_error(
        "wrong_gpu",
        r"incompatible device, expecting compute (?P<here>[\d.]+) got compute (?P<engine>[\d.]+)",
        "The engine was built for GPUs of compute capability {engine}, and this one has {here}; "
        "choose that GPU in resources.accelerator, or build the engine on this one.",
    ),
    _known_error(
        "tensorrt_mismatch",
        r"expecting library version (?P<here>[\d.]*\d) got (?P<engine>[\d.]*\d)",
        _other_tensorrt,
    ),
    _known_error(
        "engine_unreadable",
        r"version tag does not match|plan file is not compatible|failed to deserialize cuda engine"
        r"|deserializeCudaEngine.*(error|failed)|magic tag does not match",
        "This TensorRT cannot read the engine file: another version built it, or it is damaged; "
        "use the image that its config.json calls for (`trtllm-truss check` names it), or fetch "
        "or build it again.",
    ),
    _known_error(
        "engine_too_new",
        r"\[json\.exception\.\S+\] key '(?P<key>\w+)' not found\s*$|unexpected error.*key '\w+' not"
        r" found",
        "This TensorRT-LLM does not understand the engine's config.json, which another version "
        "wrote; use the image that `trtllm-truss check` names.",
        context=r"\[(TensorRT-LLM)\]\[ERROR\]|failed to load",
    ),
    _known_error(
        "world_size",
        r"MPI worldSize is expected to be equal|mpiSize == tp|parallelism mismatch",
        "The number of MPI ranks is not the engine's tensor_parallelism × pipeline_parallelism; "
        "set both to what its config.json says.",
    ),
    _known_error(
        "rank_file_missing",
        r"error opening engine file:? (?P<file>\S+)",
        "The engine file {file} is missing or cannot be read; put every rank's file into the "
        "engine repository.",
    ),
    _known_error(
        "engine_folder_missing",
        r"cannot (find|open) .*config\.json|model path at \S+ does not exist"
        r"|encoder and decoder model paths are empty",
        "The engine's folder or its config.json is not where config.pbtxt says; fetch it again.",
    ),
    _known_error(
        "too_few_gpus",
        r"invalid device ordinal|no CUDA-capable device|duplicate GPU detected",
        "The engine's ranks do not find one GPU each; ask for as many in resources.accelerator "
        "(tensor × pipeline parallelism), and check gpu_device_ids and CUDA_VISIBLE_DEVICES.",
    ),
    _known_error(
        "driver",
        r"CUDA driver version is insufficient",
        'The NVIDIA driver is too old for this image, or no GPU is visible; the line "CUDA '
        'compatibility" at the start of the log names the mode. '
        f"{PINNED_IMAGE.name} was made for driver {PINNED_IMAGE.driver}.",
    ),
    _known_error(
        "kv_cache_memory",
        _OUT_OF_MEMORY,
        "The GPU's memory has no room for the KV cache; lower kv_cache_free_gpu_mem_fraction or "
        "max_tokens_in_paged_kv_cache in model_metadata.runtime.",
        context=r"kv_?cache_?manager|allocatePools|createKvCache",
    ),
    _known_error(
        "gpu_memory",
        _OUT_OF_MEMORY,
        "The engine does not fit into the GPU's memory; use a GPU with more, build it for more "
        "GPUs, quantized or with a smaller max_batch_size, and see that nothing else runs there.",
    ),
    _known_error(
        "shared_memory",
        r"bus error|(/dev/shm|shared memory|shm_region|posix_fallocate).*"
        r"(no space left|failed to extend|--shm-size|error while creating)"
        r"|error while creating shared memory|failed to extend /dev/shm",
        "The container's shared memory (/dev/shm) is too small; give it 1 GiB or more for each "
        "GPU (Docker: --shm-size).",
    ),
    _known_error(
        "disk_full",
        r"no space left on device",
        "The disk is full; free some space, or give the container more.",
    ),
    _known_error(
        "port",
        r"failed to start \S+ service|address already in use|socket .*already in use",
        "Other programs use Triton's ports; start again, or change triton_http_port or "
        "triton_grpc_port in model_metadata.serving if it is set.",
    ),
    _known_error(
        "paged_context_fmha",
        r"built with paged context FMHA|requires .*paged context FMHA",
        "The engine was built without paged context FMHA; set enable_kv_cache_reuse and "
        "enable_chunked_context to false in model_metadata.runtime, or build it with "
        "--use_paged_context_fmha enable.",
    ),
    _known_error(
        "beam_width",
        r"max_beam_width \d+ is larger|max beam ?width .*(exceed|larger|greater)",
        "max_beam_width in model_metadata.runtime is more than the engine was built for; lower it.",
    ),
    _known_error(
        "setting_refused",
        r"invalid gpt_model_type|batch_scheduler_policy parameter was not found or is invalid"
        r"|freeGpuMemoryFraction|cannot find parameter with name|failed to read text proto",
        "The backend refuses a value of config.pbtxt; correct it in model_metadata.runtime.",
    ),
    _known_error(
        "cuda",
        r"CUDA (runtime |driver )?error|illegal memory access|NCCL error|\bXid\b",
        "The GPU failed while the engine ran; if it happens again, see the GPU's health "
        "(nvidia-smi -q) and whether another engine of this version runs.",
    ),
    _known_error(
        "rank_aborted",
        r"MPI_ABORT was invoked on rank (?P<rank>\d+)",
        "Rank {rank} failed and ended the whole job; its error is further up in the log.",
    ),
    _known_error(
        "llm_api",
        r"\[llm_api\] the engine failed: ",
        "TensorRT-LLM's LLM API failed, and its backend ended Triton; a worker's own error is "
        "further up in the log.",
    ),
    _known_error(
        "backend_ended",
        r"kill-parent-on-death: the backend's process ended",
        "The process of Triton's Python backend ended by itself: by a signal (SIGKILL for lack of "
        "host memory), or by Open MPI 5 after the death of a worker, whose error is further up in "
        "the log.",
    ),
)
"""Most basic first."""
