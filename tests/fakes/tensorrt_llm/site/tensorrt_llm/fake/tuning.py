"""Results that the engine computes while it loads, in caches as strict as the libraries'.

The autotuner loads and saves `TLLM_AUTOTUNER_CACHE_PATH` as `AutoTunerProfilingCache` does in
tensorrt_llm/_torch/autotuner.py after pull request 10336 (in 1.2 and 1.3 before 14441): in place,
below a lock, with an error for what it cannot read. Triton's compiler finds a kernel by the
absolute path in its group (`FileCacheManager.get_group` in python/triton/runtime/cache.py). `log`
of `fake.json` receives a line for each computation.
"""

import ast
import fcntl
import json
import os
from pathlib import Path

_TACTICS = {"('fake::gemm', 'Runner', '(1,)', ((8, 64),))": "(128, 'cluster')"}
_METADATA = {
    "lib_version": os.environ.get("TLLM_FAKE_VERSION", "1.2.1"),
    "creation_timestamp": 0.0,
    "device_name": "fake",
    "device_capability": [9, 0],
}


def compute(args, behaviour, rank, step):
    """Tune, if `enable_autotuner` says so, and compile; `step` needs all ranks, as a pass does."""
    report = _report(behaviour.get("log"))
    if args.get("enable_autotuner") is not False:
        _tune(os.environ.get("TLLM_AUTOTUNER_CACHE_PATH"), rank, step, report)
    _compile(os.environ.get("TRITON_CACHE_DIR"), rank, report)


def _tune(path, rank, step, report):
    cache = {}
    if path is not None and Path(path).exists():
        cache = _load(path, rank)
    step()
    if cache.keys() != _TACTICS.keys():
        report(f"tuned rank {rank}")
    if path is None:
        return
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    with Path(path).open("a+") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        stream.seek(0)
        content = stream.read()
        current = json.loads(content) if content.strip() else {"metadata": _METADATA}
        stream.seek(0)
        stream.truncate()
        current[f"rank_{rank}"] = {
            key: {"runner_id": 0, "tactic": tactic, "min_time": 0.1}
            for key, tactic in _TACTICS.items()
        }
        json.dump(current, stream)


def _load(path, rank):
    with Path(path).open() as stream:
        fcntl.flock(stream, fcntl.LOCK_SH)
        content = json.load(stream)
    for name in _METADATA:
        content["metadata"][name]
    assert f"rank_{rank}" in content, f"Rank {rank} cache not found in {path}"
    entries = content[f"rank_{rank}"]
    for key, entry in entries.items():
        ast.literal_eval(key)
        ast.literal_eval(entry["tactic"])
    return entries


def _compile(folder, rank, report):
    place = Path(folder or Path.home() / ".triton/cache") / f"KERNEL{rank}"
    group = place / "__grp__kernel.json"
    if folder is not None and group.exists():
        children = json.loads(group.read_text())["child_paths"]
        if all(Path(child).exists() for child in children.values()):
            return
    report(f"compiled rank {rank}")
    if folder is not None:
        place.mkdir(parents=True, exist_ok=True)
        (place / "kernel.cubin").write_bytes(b"cubin")
        group.write_text(json.dumps({"child_paths": {"kernel.cubin": str(place / "kernel.cubin")}}))


def _report(file):
    def report(line):
        if file is not None:
            with Path(file).open("a") as stream:
                stream.write(line + "\n")

    return report
