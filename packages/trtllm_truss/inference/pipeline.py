"""The objects that a request passes through, built for one engine."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple

from trtllm_truss.engines.deployment import Deployment
from trtllm_truss.engines.engine import Engine
from trtllm_truss.guides.gate import GuideGate, kept_guides_for
from trtllm_truss.guides.validator import GuideValidator
from trtllm_truss.inference.admission import Admission
from trtllm_truss.inference.generation import Generator
from trtllm_truss.inference.heartbeat import EngineHeartbeat
from trtllm_truss.inference.preprocessing import Capabilities, Preprocessor
from trtllm_truss.observability.metrics import Metrics
from trtllm_truss.text.tokenizer import TextTokenizer
from trtllm_truss.triton.client.client import TritonClient

logger = logging.getLogger(__name__)


class RequestPipeline(NamedTuple):
    """The objects that serve requests with a running engine.

    Attributes:
        recommended: the sampling defaults of the model's `generation_config.json`.
    """

    engine: Engine
    tokenizer: TextTokenizer
    admission: Admission
    generator: Generator
    recommended: Mapping[str, Any]


def build_request_pipeline(
    deployment: Deployment,
    guides: GuideValidator | None,
    tokenizer: TextTokenizer,
    connect: Callable[[], TritonClient],
    heartbeat: EngineHeartbeat,
    metrics: Metrics,
) -> RequestPipeline:
    """Build the admission and generator of an engine.

    Args:
        guides: None without guided decoding.
        connect: returns the connection to the running engine, or raises EngineUnavailable.
    """
    settings, engine, version = deployment.settings, deployment.engine, deployment.version
    admission = Admission.of(deployment)
    kept = kept_guides_for(deployment)
    capabilities = Capabilities.of(deployment)
    preprocessor = Preprocessor(
        engine,
        tokenizer,
        capabilities,
        GuideGate(guides, kept, engine.guided_decoding_backend(settings))
        if guides is not None
        else None,
        engine.cache_report(settings.runtime, version),
    )
    generator = Generator(
        preprocessor,
        tokenizer,
        connect,
        settings.serving,
        admission=admission,
        heartbeat=heartbeat,
        metrics=metrics,
        logits=Admission(admission.max_requests, capabilities.logits_tokens, settings.serving)
        if capabilities.logits_tokens
        else None,
    )
    recommended = _recommended(tokenizer.sampling, engine.refuses(version))
    return RequestPipeline(engine, tokenizer, admission, generator, recommended)


def _recommended(sampling: Mapping[str, Any], refused: Collection[str]) -> dict[str, Any]:
    """Drop values that the engine refuses; requests that omit the field would fail otherwise."""
    for name in sampling.keys() & set(refused):
        logger.warning("generation_config.json: %s is not used: the engine has none", name)
    return {name: value for name, value in sampling.items() if name not in refused}
