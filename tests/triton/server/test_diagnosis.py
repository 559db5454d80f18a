from __future__ import annotations

import pytest

from trtllm_truss.triton.server.diagnosis import (
    describe_exit,
    explain_exit,
    is_port_conflict,
    last_error_line,
)
from trtllm_truss.triton.server.known_errors import KNOWN_ERRORS, find_known_error

LOAD_FAILURE = (
    "E1121 08:45:15.576576 7594 model_lifecycle.cc:642] \"failed to load 'tensorrt_llm' version 1: "
    'Internal: unexpected error when creating modelInstanceState: {}\\n\\nAt:\\n"'
)
# Lines of every server on a host without a GPU.
HARMLESS = [
    'W1121 08:45:15.570000 7594 pinned_memory_manager.cc:273] "Unable to allocate pinned system '
    "memory, pinned memory pool will not be available: CUDA driver version is insufficient for "
    'CUDA runtime version"',
    'I1121 08:45:15.570001 7594 cuda_memory_manager.cc:117] "CUDA memory pool disabled"',
    'E1121 08:45:15.570002 7594 server.cc:241] "CudaDriverHelper has not been initialized."',
    'E1121 08:45:15.579000 7594 ensemble_scheduler.cc:1468] "unable to create stream for ensemble: '
    'CUDA driver version is insufficient for CUDA runtime version"',
    "Error: Failed to initialize NVML",
    'W1121 08:45:15.580000 7594 metrics.cc:798] "DCGM unable to start: DCGM initialization error"',
    'I1121 08:45:15.580001 7594 server.cc:345] "Timeout 5: Found 0 live models and 0 in-flight"',
    "error: creating server: Internal - failed to load all models",
]


@pytest.mark.parametrize(
    ("lines", "line"),
    [
        ([], None),
        (["", "  "], None),
        (["only words", ""], "only words"),
        (["[TensorRT-LLM][ERROR] no GPU", "bye"], "[TensorRT-LLM][ERROR] no GPU"),
        (
            [
                *HARMLESS[:4],
                'E1121 08:45:15.576576 7594 model_lifecycle.cc:654] "failed: no engine\\n\\nAt"',
                *HARMLESS[4:],
            ],
            "failed: no engine",
        ),
        (
            [
                "the last words of rank 1",
                "-" * 74,
                "prterun detected that one or more processes exited with non-zero status,",
                "thus causing the job to be terminated. The first process to do so was:",
                "",
                "   Process name: [prterun-vm-5480@1,0]",
                "   Exit code:    3",
                "-" * 74,
            ],
            "the last words of rank 1",
        ),
    ],
)
def test_last_error_line(lines, line):
    assert last_error_line(lines) == line


REAL_TEXTS = [
    ("config_placeholder", "Error parsing text-format inference.ModelConfig: 3:17: Expected "
     "integer, got: $"),
    ("config_placeholder", LOAD_FAILURE.format("config.pbtxt still holds an unfilled ${...}")),
    ("backend_missing", "E1121 08:44:07.6 20271 model_lifecycle.cc:642] \"failed to load "
     "'tensorrt_llm' version 1: Invalid argument: unable to find backend library for backend "
     "'tensorrtllm', try specifying runtime on the model configuration.\""),
    ("backend_mismatch", "UNAVAILABLE: Not found: unable to load shared library: "
     "/opt/tritonserver/backends/tensorrtllm/libtriton_tensorrtllm.so: undefined symbol: "
     "_ZNK12tensorrt_llm8executor8Response11getErrorMsgB5cxx11Ev"),
    ("library_missing", "unable to load shared library: libnvinfer_plugin_tensorrt_llm.so.9: "
     "cannot open shared object file: No such file or directory"),
    ("wrong_python", "ERROR: Failed to create instance: ModuleNotFoundError: No module named "
     "'_struct'"),
    ("wrong_python", "Fatal Python error: init_fs_encoding: failed to get the Python codec of the "
     "filesystem encoding\nModuleNotFoundError: No module named 'encodings'"),
    ("module_missing", "E1121 08:44:06.1 20245 model_lifecycle.cc:642] \"failed to load "
     "'tensorrt_llm' version 1: Internal: ModuleNotFoundError: No module named "
     "'openvino'\\n\\nAt:\\n\""),
    ("tensorrt_llm_missing", "E1121 08:44:06.1 20245 model_lifecycle.cc:642] \"failed to load "
     "'tensorrt_llm' version 1: Internal: ModuleNotFoundError: No module named "
     "'tensorrt_llm'\\n\\nAt:\\n\""),
    ("architecture_unknown", "ValueError: Unknown architecture for AutoModelForCausalLM: "
     "GraniteForCausalLM"),
    ("wrong_gpu", "[TensorRT-LLM][ERROR] IRuntime::deserializeCudaEngine: Error Code 6: API Usage "
     "Error (The engine plan file is generated on an incompatible device, expecting compute 9.0 "
     "got compute 8.9, please rebuild.)"),
    ("tensorrt_mismatch", "[TensorRT-LLM][ERROR] 6: The engine plan file is not compatible with "
     "this version of TensorRT, expecting library version 10.11.0.33 got 10.3.0.26, please "
     "rebuild."),
    ("engine_unreadable", "[TensorRT-LLM][ERROR] 1: [stdArchiveReader.cpp::StdArchiveReader::32] "
     "Error Code 1: Serialization (Serialization assertion stdVersionRead == "
     "kSERIALIZATION_VERSION failed.Version tag does not match. Note: Current Version: 228, "
     "Serialized Engine Version: 226)"),
    ("engine_unreadable", LOAD_FAILURE.format(
        "Failed to deserialize cuda engine: /e/rank0.engine is not a plan this runtime reads")),
    ("engine_too_new", LOAD_FAILURE.format(
        "[json.exception.out_of_range.403] key 'use_context_fmha_for_generation' not found")),
    ("world_size", LOAD_FAILURE.format(
        "[TensorRT-LLM][ERROR] Assertion failed: With communicationMode kLEADER, MPI worldSize is "
        "expected to be equal to tp*pp*cp when participantIds are not specified")),
    ("world_size", LOAD_FAILURE.format("Assertion failed: mpiSize == tp * pp (1 != 2 * 1)")),
    ("rank_file_missing", LOAD_FAILURE.format("Error opening engine file: /e/rank1.engine")),
    ("engine_folder_missing", LOAD_FAILURE.format("Cannot find engine config file /e/config.json")),
    ("engine_folder_missing", LOAD_FAILURE.format(
        "Both encoder and decoder model paths are empty")),
    ("too_few_gpus", LOAD_FAILURE.format(
        "[TensorRT-LLM][ERROR] CUDA runtime error in cudaSetDevice(device): invalid device "
        "ordinal")),
    ("driver", LOAD_FAILURE.format(
        "[TensorRT-LLM][ERROR] CUDA runtime error in cudaGetDeviceCount(&count): CUDA driver "
        "version is insufficient for CUDA runtime version")),
    ("gpu_memory", LOAD_FAILURE.format(
        "[TensorRT-LLM][ERROR] CUDA runtime error in ::cudaMallocAsync(ptr, n, "
        "mCudaStream->get()): out of memory (/app/cpp/tensorrt_llm/runtime/tllmBuffers.h:112)")),
    ("gpu_memory", "[TensorRT-LLM][ERROR] [virtualMemoryBuffer.cpp::resizePhysical::154] Error "
     "Code 2: OutOfMemory (Requested size was 16106127360 bytes.)"),
    ("gpu_memory", "[TensorRT-LLM][ERROR] Requested amount of GPU memory (17179869184 bytes) could "
     "not be allocated. There may not be enough free memory for allocation to succeed."),
    ("shared_memory", "Unable to initialize shared memory key 'triton_python_backend_shm_region_2' "
     "to requested size (67108864 bytes). If you are running Triton inside docker, use "
     "'--shm-size' flag to control the shared memory region size. Error: No space left on device"),
    ("shared_memory", "node:1034:1040 [0] misc/shmutils.cc:72 NCCL WARN Error: failed to extend "
     "/dev/shm/nccl-Xk2b1a to 9637892 bytes"),
    ("shared_memory", "[tensor-rt-llm:1034 :0:1040] Caught signal 7 (Bus error: nonexistent "
     "physical address)"),
    ("disk_full", "OSError: [Errno 28] No space left on device: '/tmp/x'"),
    ("port", "error: failed to start HTTP service: Unavailable - Socket '127.0.0.1:8000' already "
     "in use"),
    ("paged_context_fmha", LOAD_FAILURE.format(
        "When KV cache block reuse is set, model has to be built with paged context FMHA support")),
    ("paged_context_fmha", LOAD_FAILURE.format(
        "Assertion failed: Chunked context requires context FMHA, paged kv_cache and paged context "
        "FMHA all enabled at the same time.")),
    ("beam_width", LOAD_FAILURE.format("max_beam_width 4 is larger than the engine's 1")),
    ("setting_refused", LOAD_FAILURE.format(
        "Invalid gpt_model_type. Must be v1/inflight_batching/inflight_fused_batching.")),
    ("setting_refused", LOAD_FAILURE.format(
        "Assertion failed: 0 < freeGpuMemoryFraction <= 1")),
    ("cuda", "[engine_sim] illegal memory access (simulated)"),
    ("cuda", "[TensorRT-LLM][ERROR] CUDA runtime error in cudaEventSynchronize(get()): an illegal "
     "memory access was encountered (/app/cpp/include/tensorrt_llm/runtime/cudaEvent.h:66)"),
    ("rank_aborted", "MPI_ABORT was invoked on rank 1 in communicator MPI_COMM_WORLD"),
    ("llm_api", "[llm_api] the engine failed: worker process python3 (171) ended."),
    ("backend_ended", "kill-parent-on-death: the backend's process ended"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "text"), REAL_TEXTS)
def test_causes(name, text):
    (cause,) = [cause for cause in KNOWN_ERRORS if cause.name == name]
    words = explain_exit([*HARMLESS[:4], text, *HARMLESS[4:]], 1)
    assert words.startswith(cause.explain(cause.pattern.search(text)) + " Its log: ")


def test_every_cause_has_a_real_text():
    assert {name for name, _ in REAL_TEXTS} | {"kv_cache_memory"} == {c.name for c in KNOWN_ERRORS}


def test_lines_of_a_host_without_gpu_are_not_a_cause():
    assert find_known_error([]) is None
    assert explain_exit(HARMLESS[2:], 1).endswith("in-flight")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (
            "expecting compute 9.0 got compute 8.9, please rebuild. (incompatible device, "
            "expecting compute 9.0 got compute 8.9)",
            "The engine was built for GPUs of compute capability 8.9, and this one has 9.0; "
            "choose that GPU in resources.accelerator, or build the engine on this one.",
        ),
        (
            "expecting library version 10.11.0.33 got 10.3.0.26, please rebuild.",
            "The engine was built with TensorRT 10.3.0.26, and this is 10.11.0.33; use the image "
            "nvcr.io/nvidia/tritonserver:24.08-trtllm-python-py3, or build the engine with this "
            "one.",
        ),
        (
            "expecting library version 9.2.0.5 got 8.6.1.6, please rebuild.",
            "The engine was built with TensorRT 8.6.1.6, and this is 9.2.0.5; use an image with "
            "that version, or build the engine with this one.",
        ),
        (
            "unable to find backend library for backend '${triton_backend}', try",
            "config.pbtxt still holds the placeholder ${triton_backend}; fill it in, or have the "
            "repository rendered.",
        ),
    ],
)
def test_sentences_name_both_sides(text, sentence):
    assert find_known_error([text])[0] == sentence


def test_memory_of_the_kv_cache_and_of_the_engine_are_distinguished():
    line = "[TensorRT-LLM][ERROR] CUDA runtime error in ::cudaMallocAsync(ptr, n): out of memory"
    trace = "5  0x7f tensorrt_llm::batch_manager::kv_cache_manager::BlockManager::allocatePools()"
    assert "kv_cache_free_gpu_mem_fraction" in find_known_error([line, trace])[0]
    assert "does not fit" in find_known_error([line])[0]


def test_consequences_do_not_hide_their_cause():
    lines = [
        "[TensorRT-LLM][ERROR] 6: The engine plan file is not compatible with this version of "
        "TensorRT, expecting library version 10.11.0.33 got 10.3.0.26, please rebuild.",
        LOAD_FAILURE.format("Assertion failed: Failed to deserialize cuda engine."),
        "MPI_ABORT was invoked on rank 0 in communicator MPI_COMM_WORLD",
    ]
    assert "24.08" in explain_exit(lines, 1)
    assert "24.08" in explain_exit(lines[::-1], 1)


@pytest.mark.parametrize(
    ("returncode", "words"),
    [
        (137, "runs out of memory; give the container more. Its log is empty."),
        (135, "(Docker: --shm-size). Its log is empty."),
        (139, "Its log is empty."),
        (-9, "Its log is empty."),
        (None, "Its log is empty."),
    ],
)
def test_signals_are_causes_too(returncode, words):
    assert explain_exit([], returncode).endswith(words)


def test_a_kill_after_a_signal_from_outside_is_no_lack_of_memory():
    assert "truss push --watch" in explain_exit(["Signal (15) received."], 137)
    assert "truss push --watch" not in explain_exit(["Signal (15) received."], 1)
    assert "--shm-size" in explain_exit(["Signal (15) received."], 135)


def test_port_conflict():
    assert is_port_conflict(["error: failed to start GRPC service: Unavailable - Socket in use"])
    assert is_port_conflict(["[h:9] PRTE ERROR: Fatal in file /x/oob_tcp_component.c at line 582"])
    assert not is_port_conflict(["ready"])


@pytest.mark.parametrize(
    ("returncode", "words"),
    [
        (0, "exited with code 0"),
        (1, "exited with code 1"),
        (137, "was killed by SIGKILL"),
        (-9, "was lost: its process guard was killed by SIGKILL"),
        (255, "exited with code 255"),
    ],
)
def test_describe_exit(returncode, words):
    assert describe_exit(returncode) == words
