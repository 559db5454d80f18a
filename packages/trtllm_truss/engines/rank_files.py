"""Which files of a repository are an engine's ranks, and which are missing.

The runtime computes the names it opens (``GptJsonConfig::engineFilename`` in NVIDIA/TensorRT-LLM):
``rankR.engine`` for an engine with a version, ``<name>_<dtype>_tpN[_ppM]_rankR.engine`` for one
without. Any other ``.engine`` file is never opened.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from trtllm_truss.engines.tensorrt_llm_config import EngineConfig

ENGINE_SUFFIX = ".engine"


@dataclass(frozen=True, slots=True)
class RankFiles:
    """The engine files of a repository, against those that its ``config.json`` calls for.

    Attributes:
        names: the files that are opened, by rank; with managed weights each rank's second file
            follows the engines.
        missing: those of `names` that are not there.
        surplus: engine files that nothing opens.
        largest_rank_bytes: size of the largest rank, about what its weights take on a GPU.
    """

    names: tuple[str, ...]
    missing: tuple[str, ...]
    surplus: tuple[str, ...]
    largest_rank_bytes: int


def match_rank_files(config: EngineConfig, sizes: Mapping[str, int]) -> RankFiles:
    """Compares what is there with what the engine's runtime opens.

    Args:
        config: the engine.
        sizes: bytes of each file by name.
    """
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
