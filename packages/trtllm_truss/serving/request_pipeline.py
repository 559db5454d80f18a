"""Assemble what answers requests with a running engine."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

from trtllm_truss.engines.engine import Engine
from trtllm_truss.guides.validator import GuideGate, guide_check_for, kept_guides_for
from trtllm_truss.inference.admission import Admission, EngineHeartbeat
from trtllm_truss.inference.generation import Generator
from trtllm_truss.inference.preprocessing import Capabilities, Preprocessor
from trtllm_truss.metrics import Metrics
from trtllm_truss.processes.child import child_environment
from trtllm_truss.serving.preflight import ResolvedEngine
from trtllm_truss.serving.preparation import tokenizer_info_file
from trtllm_truss.settings.loading import Environment
from trtllm_truss.settings.model import Settings
from trtllm_truss.text.tokenizer import TextTokenizer
from trtllm_truss.triton.client.client import TritonClient

logger = logging.getLogger(__name__)


class RequestPipeline(NamedTuple):
    """The objects that answer requests with a running engine.

    Attributes:
        recommended: the sampling defaults of the model's `generation_config.json`.
    """

    engine: Engine
    tokenizer: TextTokenizer
    admission: Admission
    generator: Generator
    recommended: Mapping[str, Any]


def build_request_pipeline(
    settings: Settings,
    environment: Environment,
    resolved: ResolvedEngine,
    tensorrt_llm_version: str | None,
    repository: Path,
    tokenizer: TextTokenizer,
    connect: Callable[[], TritonClient],
    heartbeat: EngineHeartbeat,
    metrics: Metrics,
    resources: ExitStack,
) -> RequestPipeline:
    """Build admission and generator of an engine.

    Args:
        repository: its rendered model repository.
        connect: returns the connection to the running engine, or raises EngineUnavailable.
        resources: what to close when the engine stops.
    """
    engine, capacity = resolved.engine, resolved.capacity
    admission = Admission.for_engine(settings, engine, capacity)
    guides = guide_check_for(
        engine,
        tokenizer_info_file(settings, engine, repository),
        child_environment(environment.variables, settings.serving.pass_environment),
        settings.serving.guide_compile_limit_s,
    )
    kept = kept_guides_for(engine, settings, tensorrt_llm_version)
    if guides is not None:
        resources.callback(guides.close)
    preprocessor = Preprocessor(
        engine,
        tokenizer,
        Capabilities.for_engine(settings, engine, capacity, tensorrt_llm_version),
        GuideGate(guides, kept, engine.guided_decoding_backend(settings))
        if guides is not None
        else None,
        engine.cache_report(settings.runtime, tensorrt_llm_version),
    )
    generator = Generator(
        preprocessor,
        tokenizer,
        connect,
        settings.serving,
        admission=admission,
        heartbeat=heartbeat,
        metrics=metrics,
    )
    recommended = _recommended(tokenizer.sampling, engine.refuses(tensorrt_llm_version))
    return RequestPipeline(engine, tokenizer, admission, generator, recommended)


def _recommended(sampling: Mapping[str, Any], refused: Collection[str]) -> dict[str, Any]:
    """Leave out what the engine refuses; else each request that omits the field would fail."""
    for name in sampling.keys() & set(refused):
        logger.warning("generation_config.json: %s is not used: the engine has none", name)
    return {name: value for name, value in sampling.items() if name not in refused}
