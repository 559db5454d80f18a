"""Checks of rows on the Python of the installed TensorRT-LLM."""

from __future__ import annotations

from trtllm_truss.engines.checkpoint.architectures import ARCHITECTURES
from trtllm_truss.releases.versions import Release, release
from trtllm_workbench.selftest.assumptions.installed import Check, Installed, names_missing
from trtllm_workbench.selftest.bench.results import FellShort, Held

_SAMPLERS_OF_1_0 = ("enable_trtllm_sampler", "enable_mixed_sampler")
_ENDS_PARENTS: Release = (5,)
_STOP_FIELDS = {"stop", "stop_token_ids"}


def architectures(since: Release) -> Check:
    """Check that every architecture of a release is registered."""

    def run(installed: Installed) -> Held:
        names = [name for name, row in ARCHITECTURES.items() if row.since == since]
        if missing := names_missing(names, installed.fact("architectures")):
            raise FellShort(f"not registered: {missing}")
        return Held(f"{len(names)} architectures are registered", {"count": len(names)})

    return run


def stop_fields(installed: Installed) -> Held:
    """Look for another field of `SamplingParams` that takes stop words."""
    fields = [name for name in installed.fact("sampling_fields") if name.startswith("stop")]
    if more := names_missing(fields, _STOP_FIELDS):
        raise FellShort(f"SamplingParams has {more}")
    return Held(f"SamplingParams has {', '.join(fields)} only")


def named_samplers(installed: Installed) -> Held:
    """Look for the arguments that choose a sampler in 1.0."""
    if missing := names_missing(_SAMPLERS_OF_1_0, installed.fact("llm_arguments")):
        raise FellShort(f"TorchLlmArgs has no {missing}")
    return Held(f"TorchLlmArgs has {' and '.join(_SAMPLERS_OF_1_0)}")


def graph_sizes(installed: Installed) -> Held:
    """Compare the largest size of a padded CUDA graph with the batch."""
    sizes, batch = installed.fact("graph_sizes"), installed.fact("graph_batch")
    if max(sizes) < batch:
        raise FellShort(f"the largest graph has {max(sizes)} of {batch} requests")
    return Held(f"{len(sizes)} sizes up to {max(sizes)}", {"sizes": len(sizes)})


def death_of_a_worker(installed: Installed) -> Held:
    """Compare what became of a killed worker's parent with what Open MPI's release does."""
    version, parent = installed.fact("open_mpi"), installed.fact("parent_of_a_dead_worker")
    expected = "is ended" if release(version) >= _ENDS_PARENTS else "waits"
    if parent != expected:
        raise FellShort(f"with Open MPI {version} the parent {parent}; expected: {expected}")
    return Held(f"with Open MPI {version} the parent {parent}")
