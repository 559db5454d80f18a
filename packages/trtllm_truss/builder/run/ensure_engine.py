"""Just in time: the engine of the settings is found, fetched or built."""

from __future__ import annotations

import logging
from pathlib import Path

from trtllm_truss.builder.jobs import prepare
from trtllm_truss.builder.publishing import find_published, publish
from trtllm_truss.builder.run.build_engine import run
from trtllm_truss.engines.compatibility.environment import Surroundings
from trtllm_truss.errors import BuildError
from trtllm_truss.settings.loading import Environment
from trtllm_truss.settings.model import Settings

logger = logging.getLogger(__name__)


def ensure_engine(settings: Settings, environment: Environment, surroundings: Surroundings) -> Path:
    """The folder of the engine that `settings.build` describes.

    An equal build on this machine wins, then one that was published; otherwise it is built here,
    and published if `build.publish_to` says where. That publishing fails is a warning only: the
    engine is here.

    Args:
        settings: with `build` set.
        environment: token and variables.
        surroundings: GPUs and version, here and in config.yaml.

    Raises:
        SettingsError: the settings ask for what cannot be built.
        ArtifactError: the checkpoint or the published engine cannot be fetched.
        BuildError: a tool is missing or a command failed.
    """
    token = environment.hf_access_token
    job = prepare(settings, surroundings, token)
    destination = job.build.publish_to
    if destination and not job.workspace.is_complete:
        published = find_published(destination, job.key, token)
        if published is not None:
            logger.info("found the same build in %s", destination)
            return published
    was_here = job.workspace.is_complete
    engine = run(job, environment.variables, logger.info)
    if destination and not was_here:
        try:
            publish(engine, destination, token)
            logger.info("published to %s", destination)
        except BuildError as error:
            logger.warning("the engine is built but not published: %s", error.message)
    return engine
