"""The files of an engine's ranks.

The runtime computes the names (``GptJsonConfig::engineFilename`` in NVIDIA/TensorRT-LLM):
``rankR.engine`` for an engine with a version, ``<name>_<dtype>_tpN[_ppM]_rankR.engine`` for one
without. Any other ``.engine`` file is never opened.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from trtllm_truss.engines.compiled.tensorrt_llm_config import EngineConfig, Parallelism

ENGINE_SUFFIX = ".engine"


@dataclass(frozen=True, slots=True)
class RankFiles:
    """The engine files of a repository, compared with its ``config.json``.

    Attributes:
        names: files that the runtime opens, by rank; with managed weights each rank's second file
            follows the engines.
        missing: those of `names` that the repository lacks.
        surplus: engine files that nothing opens.
        largest_rank_bytes: size of the largest rank, about the GPU memory of its weights.
    """

    names: tuple[str, ...]
    missing: tuple[str, ...]
    surplus: tuple[str, ...]
    largest_rank_bytes: int

    def of_ranks(self, ranks: Collection[int]) -> tuple[str, ...]:
        """Return the files that some of the ranks open."""
        world_size = sum(name.endswith(ENGINE_SUFFIX) for name in self.names)
        return tuple(name for i, name in enumerate(self.names) if i % world_size in ranks)

    def held_for(self, ranks: Collection[int]) -> RankFiles:
        """Return the comparison for a host that holds the files of some ranks only."""
        own = self.of_ranks(ranks)
        return replace(self, missing=tuple(name for name in self.missing if name in own))


def opened_ranks(split: Parallelism) -> tuple[int, ...]:
    """Return the rank whose file each process of the MPI job opens, by the process's place.

    The leader, process 0, belongs to the last pipeline stage: the executor reverses the order of
    the stages, and keeps the order within each. Source: ``initializeWorkers`` of
    ``cpp/tensorrt_llm/executor/executorImpl.cpp`` in NVIDIA/TensorRT-LLM, near 0.19 and near 1.1.
    """
    places = list(range(split.world_size))
    if split.pipeline > 1:
        places.reverse()
        for stage in range(split.pipeline):
            within = slice(stage * split.tensor, (stage + 1) * split.tensor)
            places[within] = reversed(places[within])
    return tuple(places.index(place) for place in range(split.world_size))


def match_rank_files(config: EngineConfig, sizes: Mapping[str, int]) -> RankFiles:
    """Compare files, in bytes by name, with those that the engine's runtime opens."""
    ranks = range(config.parallelism.world_size)
    engines = [_engine_name(config, rank) for rank in ranks]
    weights = (
        [f"rank{rank}_managed_weights.safetensors" for rank in ranks]
        if config.plugins.managed_weights
        else []
    )
    names = (*engines, *weights)
    return RankFiles(
        names=names,
        missing=tuple(name for name in names if name not in sizes),
        surplus=tuple(
            sorted(name for name in sizes if name.endswith(ENGINE_SUFFIX) and name not in engines)
        ),
        largest_rank_bytes=max(
            sum(sizes.get(name, 0) for name in names[rank :: len(engines)]) for rank in ranks
        ),
    )


def _engine_name(config: EngineConfig, rank: int) -> str:
    if config.version is not None:
        return f"rank{rank}{ENGINE_SUFFIX}"
    split = config.parallelism
    pipeline = f"_pp{split.pipeline}" if split.pipeline > 1 else ""
    dtype = config.quantization.dtype
    return f"{config.name}_{dtype}_tp{split.tensor}{pipeline}_rank{rank}{ENGINE_SUFFIX}"
