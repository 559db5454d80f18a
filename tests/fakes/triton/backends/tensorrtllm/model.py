"""A fake of the C++ `tensorrtllm` backend: any number of ranks, no GPU, no language model.

With `TRITON_BACKEND_DIRECTORY` = the folder above, the production `config.pbtxt` loads unchanged.
The engine folder is laid out as a real one (`tests.fakes.triton.write_engine` does it), and each
`rankN.engine` is a text file: `FAKE`, then `key=value` lines. Keys of the engine:

    step_ms       time of one iteration of the whole batch
    prefilled     file that gets a byte for each prompt that is processed
    runs          requests at once; default: the engine's max_batch_size
    load_s        time to load
    load_after    file that must exist before the load ends
    load_error    text to fail with while loading
    load_exit     end this process with this status while loading
    load_crash    1: abort the server while loading
    mpi           1: start MPI, and take each step with all ranks
    crash_after   abort the server after so many iterations with requests
    broken_after  fail every request, and stay ready, after so many iterations with requests, as
                  after an error of CUDA
    hang_after    stop answering after so many iterations with requests
    log_requests  1: write the tensors of each request to the log
    scripts       JSON file of `[prompt, guide, ids]`: the ids answer requests whose prompt ends in
                  these ids and whose guide contains this text, without a guide null
    draws         1: draw each token from the logits of `known_model`, by the request's sampling
    log_reuse     1: write to the log how many tokens of each prompt are in the KV cache

Keys of a request, in `rank0.engine` for all of them, in `<request id>.request` for one:

    tokens          comma-separated ids of the answer; default: those of the prompt, repeated
    delay_ms        time before each token
    first_delay_ms  time before the first one instead
    released        file that has a byte for each token which may be generated
    final           end of the answer: `with_last` token (default, as in the C++ backend), by an
                    empty response `after_last`, or by an `empty` flag without a response
    error, error_at fail with this text after so many tokens
    ignore_cancel   1: go on after the request was cancelled or stopped
    only_stop       1: go on after the call was cancelled; `stop` ends the request
    ignore_stop     1: answer a `stop` like any other request, as backends without it do
    ignore_stop_words  1: generate on after a stop word

A guide binds from the first token on, as in the executor: an answer with a guide is the script's
for that guide.

It fails with the real backend's messages and logs the end of cancelled requests to stderr:
`[fake] stopped id=ID after=TOKENS`. As with the real backend, a rank above 0 never becomes ready,
and all processes end with the engine's.
"""

import ctypes
import importlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import triton_python_backend_utils as pb_utils

# The stub's interpreter ignores PYTHONPATH, which names the project's package in a container.
sys.path.extend(filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep)))

from batch import Batch, Limits

_KEYS = {
    **dict.fromkeys(("step_ms", "load_s", "delay_ms", "first_delay_ms"), float),
    **dict.fromkeys(("load_exit", "load_crash", "crash_after", "hang_after", "broken_after"), int),
    **dict.fromkeys(("log_requests", "error_at", "mpi", "runs"), int),
    **dict.fromkeys(("ignore_cancel", "ignore_stop", "only_stop", "ignore_stop_words"), int),
    **dict.fromkeys(("load_error", "error", "final", "end_file", "released", "prefilled"), str),
    "load_after": Path,
    **dict.fromkeys(("draws", "log_reuse"), int),
    "scripts": lambda path: json.loads(Path(path).read_text()),
    "tokens": lambda text: [int(word) for word in text.split(",") if word],
}
_BATCHING = ("inflight_fused_batching", "inflight_batching", "V1", "v1")
_SCHEDULING = ("", "max_utilization", "guaranteed_no_evict")
_WATCH = 'read -r word || kill -KILL "$1" 2>/dev/null'
_STEPS = Path(__file__).resolve().parents[3] / "tensorrt_llm/site/tensorrt_llm/fake"
_RANK = int(os.environ.get("OMPI_COMM_WORLD_RANK", os.environ.get("PMIX_RANK", 0)))
_LOCAL_SIZE = int(os.environ.get("OMPI_COMM_WORLD_LOCAL_SIZE", 1))
_WORLD_SIZE = int(os.environ.get("OMPI_COMM_WORLD_SIZE", os.environ.get("SLURM_NTASKS", 1)))


class TritonPythonModel:
    def initialize(self, args):
        config = json.loads(args["model_config"])
        values = {k: v["string_value"] for k, v in config["parameters"].items()}
        _check_parameters(values)
        self._folder = Path(values["gpt_model_path"])
        try:
            engine = json.loads((self._folder / "config.json").read_text())
        except OSError as error:
            raise _refusal(f"Cannot open {self._folder / 'config.json'}") from error
        mapping = engine["pretrained_config"]["mapping"]
        _check_world_size(mapping)
        self._behaviour = _read_rank_file(self._folder / f"rank{_opened(mapping)}.engine")
        _load(self._behaviour)
        self._death_watch = subprocess.Popen(
            ["sh", "-c", _WATCH, "kill-parent-on-death", str(os.getppid())], stdin=subprocess.PIPE
        )
        _log(f"rank {_RANK} of {_WORLD_SIZE} loaded {self._folder}")
        steps = _start_mpi() if self._behaviour.get("mpi") else None
        if steps is None:
            _wait_for_all_ranks()
        if _RANK > 0:
            _work_until_orphaned(steps)
        build = engine["build_config"]
        plugins = build["plugin_config"]
        chunks = values.get("enable_chunked_context", "").lower() in ("true", "1")
        if chunks and not plugins["use_paged_context_fmha"]:
            # batch_manager/trtGptModelInflightBatching.cpp (0.17 to 1.2)
            raise _refusal(
                "[TensorRT-LLM][ERROR] Assertion failed: Chunked context requires context FMHA, "
                "paged kv_cache and paged context FMHA all enabled at the same time."
            )
        widest = int(values.get("max_beam_width") or 1)
        if widest > build["max_beam_width"]:
            raise _refusal(
                f"max_beam_width {widest} is larger than the engine's {build['max_beam_width']}"
            )
        limits = Limits(
            max_batch_size=build["max_batch_size"],
            max_seq_len=build["max_seq_len"],
            max_input_len=_max_input_len(build, chunks),
            evicts=values.get("batch_scheduler_policy") == "max_utilization" and not chunks,
            max_beam_width=widest,
            release=tuple(int(part) for part in engine["version"].split(".")[:2]),
            check_s=int(values.get("cancellation_check_period_ms") or 100) / 1000,
            vocabulary=(vocabulary := engine["pretrained_config"]["vocab_size"]),
            padded_vocabulary=-(-vocabulary // mapping["tp_size"]) * mapping["tp_size"],
            context_logits=build.get("gather_context_logits", False),
            generation_logits=build.get("gather_generation_logits", False),
            reuses_cache=_reuses_cache(values, engine),
            normalizes=_normalizes(values, engine),
        )
        self._batch = Batch(self._behaviour, limits, _log, steps)

    def execute(self, requests):
        for request in requests:
            self._batch.add(request, self._behaviour | self._read_request_file(request))

    def finalize(self):
        self._death_watch.communicate(b"done\n")
        if file := self._behaviour.get("end_file"):
            Path(file).touch()

    def _read_request_file(self, request):
        path = self._folder / f"{request.request_id()}.request"
        return _parse(path.read_text().splitlines()) if path.exists() else {}


def _check_parameters(values):
    for name, value in values.items():
        if "${" in value:
            raise _refusal(f"parameter {name} still holds the placeholder {value}")
    if values.get("gpt_model_type") not in _BATCHING:
        raise _refusal(
            "Invalid gpt_model_type. Must be v1/inflight_batching/inflight_fused_batching."
        )
    if values.get("batch_scheduler_policy", "") not in _SCHEDULING:
        raise _refusal(
            "batch_scheduler_policy parameter was not found or is invalid "
            "(must be max_utilization or guaranteed_no_evict)"
        )
    if not 0 < float(values.get("kv_cache_free_gpu_mem_fraction") or 0.9) <= 1:
        raise _refusal("[TensorRT-LLM][ERROR] Assertion failed: 0 < freeGpuMemoryFraction <= 1")
    if not Path(values.get("gpt_model_path") or "/nowhere").is_dir():
        raise _refusal("Both encoder and decoder model paths are empty")


def _max_input_len(build, chunks):
    """Return the longest prompt: batch_manager/trtGptModel.h (1.0), getMaxInputLen."""
    longest = build["max_seq_len"] - 1
    if chunks:
        return longest
    plugins = build["plugin_config"]
    is_packed = plugins["remove_input_padding"] and plugins["context_fmha"]
    return min(longest, build["max_num_tokens" if is_packed else "max_input_len"])


def _reuses_cache(values, engine):
    """Blank is true: batch_manager/trtGptModelInflightBatching.cpp, fixExecutorConfig (1.0)."""
    build = engine["build_config"]
    wanted = values.get("enable_kv_cache_reuse", "").lower() not in ("false", "0")
    ends = build.get("gather_context_logits") and not engine["version"].startswith("0.")
    return wanted and build["plugin_config"]["use_paged_context_fmha"] and not ends


def _normalizes(values, engine):
    """Return `normalize_log_probs`; blank is true before pull request 12366 (March 2026)."""
    given = values.get("normalize_log_probs", "").lower()
    return given in ("true", "1") if given else not engine["version"].startswith("1.3")


def _check_world_size(mapping):
    if mapping["tp_size"] * mapping["pp_size"] * mapping.get("cp_size", 1) != _WORLD_SIZE:
        raise _refusal(
            "[TensorRT-LLM][ERROR] Assertion failed: With communicationMode kLEADER, MPI worldSize "
            "is expected to be equal to tp*pp*cp when participantIds are not specified "
            "(/src/tensorrt_llm/cpp/tensorrt_llm/executor/executorImpl.cpp:416)"
        )


def _opened(mapping):
    """Return the rank whose file this process opens.

    executor/executorImpl.cpp, initializeWorkers (near 0.19 and 1.1): the leader is in the last
    pipeline stage; loadModel opens the file of the session's rank.
    """
    tp, pp = mapping["tp_size"], mapping["pp_size"]
    return (pp - 1 - _RANK // tp) * tp + _RANK % tp


def _read_rank_file(path):
    try:
        magic, *lines = path.read_text(errors="replace").splitlines() or [""]
    except OSError as error:
        raise _refusal(f"[TensorRT-LLM][ERROR] Error opening engine file: {path}") from error
    if magic != "FAKE":
        sys.stderr.write(
            "[TensorRT-LLM][ERROR] IRuntime::deserializeCudaEngine: Error Code 6: API Usage Error "
            "(The engine plan file is not compatible with this version of TensorRT, expecting "
            "library version 10.11.0.33 got 10.3.0.26, please rebuild.)\n"
        )
        sys.stderr.flush()
        raise _refusal(
            "[TensorRT-LLM][ERROR] Assertion failed: Failed to deserialize cuda engine. "
            "(/src/tensorrt_llm/cpp/tensorrt_llm/runtime/tllmRuntime.cpp:239)"
        )
    return _parse(lines)


def _parse(lines):
    pairs = (line.split("=", 1) for line in lines if line)
    return {key: _KEYS[key](value) for key, value in pairs}


def _load(behaviour):
    time.sleep(behaviour.get("load_s", 0))
    while (file := behaviour.get("load_after")) and not file.exists():
        time.sleep(0.02)
    if "load_exit" in behaviour:
        os._exit(behaviour["load_exit"])
    if behaviour.get("load_crash"):
        os.kill(os.getppid(), signal.SIGABRT)
        time.sleep(60)
    if "load_error" in behaviour:
        raise _refusal(behaviour["load_error"])


def _wait_for_all_ranks():
    """Wait until all ranks have started, as MPI does; between hosts, let MPI do it."""
    if _LOCAL_SIZE < _WORLD_SIZE:
        prefix = os.environ.get("OPAL_PREFIX") or sys.prefix
        library = ctypes.CDLL(f"{prefix}/lib/libmpi.so.40", ctypes.RTLD_GLOBAL)
        library.MPI_Init(None, None)
        world = ctypes.addressof(ctypes.c_char.in_dll(library, "ompi_mpi_comm_world"))
        if library.MPI_Barrier(ctypes.c_void_p(world)):
            raise _refusal("MPI_Barrier failed")
    elif _WORLD_SIZE > 1:
        folder = Path(os.environ["TMPDIR"])
        (folder / f"fake_rank{_RANK}").touch()
        while len(list(folder.glob("fake_rank*"))) < _WORLD_SIZE:
            time.sleep(0.02)


def _start_mpi():
    """Start MPI as `initialize` of mpiUtils.cpp does, and return the steps of its ranks."""
    os.environ["MPI4PY_LIBMPI"] = os.environ["TLLM_FAKE_LIBMPI"]
    import mpi4py

    mpi4py.rc.finalize = False  # it would wait for ranks that are gone
    from mpi4py import MPI

    sys.path.append(str(_STEPS))
    return importlib.import_module("steps").Steps(MPI.COMM_WORLD)


def _work_until_orphaned(steps):
    """Block a rank above 0 until its server ends."""
    server = os.getppid()
    if steps is not None:
        threading.Thread(target=steps.follow, daemon=True).start()
    while os.getppid() == server:
        time.sleep(0.1)
    os._exit(0)


def _refusal(text):
    return pb_utils.TritonModelException(
        f"unexpected error when creating modelInstanceState: {text}"
    )


def _log(text):
    sys.stderr.write(f"[fake] {text}\n")
    sys.stderr.flush()
