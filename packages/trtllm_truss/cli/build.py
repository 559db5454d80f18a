"""`build`: an engine from a checkpoint, as `model_metadata.build` says."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

from trtllm_truss.builder.jobs import Job, prepare_build
from trtllm_truss.builder.run.build_engine import build_engine
from trtllm_truss.cli.layout import read_config
from trtllm_truss.cli.terminal import tell
from trtllm_truss.engines.compatibility.environment import Surroundings
from trtllm_truss.errors import SettingsError
from trtllm_truss.serving.preflight import local_surroundings
from trtllm_truss.settings.loading import Environment, parse_settings, read_environment


def build(truss: Path, config: Path | None, output: Path | None, *, plan_only: bool) -> int:
    """Builds the engine, or says what would be done.

    Args:
        truss: the Truss's folder.
        config: replaces its config.yaml.
        output: a new or empty folder for the engine repository; None leaves it in the cache.
        plan_only: print the commands and what they take and give, and do nothing.

    Raises:
        SettingsError: the settings ask for what cannot be built, or `output` is not empty.
        StartupError: the build failed.
    """
    environment = read_environment()
    job = find_job(truss, config, environment)
    if plan_only:
        print(job.plan, end="")
        tell(*job.estimate.sentences, f"build key: {job.key}")
        return 0
    if output is not None and output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise SettingsError(f"--output {output} is not empty; name a new folder.")
    tell(*job.estimate.sentences)
    engine = build_engine(job, environment.variables, tell)
    if output is not None:
        engine = Path(shutil.copytree(engine, output, dirs_exist_ok=True))
    print(engine)
    return 0


def find_job(truss: Path, config: Path | None, environment: Environment) -> Job:
    """The build that a configuration asks for.

    Raises:
        StartupError: there is none, or it cannot be built.
    """
    content = read_config(truss, config)
    here = local_surroundings(environment)
    asked = Surroundings.from_config(content)
    surroundings = replace(asked, gpus=here.gpus, runtime_version=here.runtime_version)
    return prepare_build(parse_settings(content), surroundings, environment.hf_access_token)
