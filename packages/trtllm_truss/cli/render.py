"""`render`: the Triton model repository that `serve` would use, to be read or taken elsewhere."""

from __future__ import annotations

from pathlib import Path

from trtllm_truss.cli.layout import read_config
from trtllm_truss.cli.terminal import tell
from trtllm_truss.engines.compatibility.environment import Surroundings
from trtllm_truss.engines.inspection import inspect_engine
from trtllm_truss.errors import SettingsError
from trtllm_truss.serving.preflight import fetch_engine, installed_version, open_tokenizer
from trtllm_truss.serving.rendering import render_engine
from trtllm_truss.settings.loading import parse_settings, read_environment


def render(truss: Path, config: Path | None, engine: Path | None, output: Path) -> int:
    """Writes the model repository of one engine.

    Raises:
        SettingsError: the settings are wrong, or `output` is not empty.
        ArtifactError: there is no engine.
    """
    content = read_config(truss, config)
    settings = parse_settings(content)
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise SettingsError(f"--output {output} is not empty; name a new folder.")
    environment = read_environment()
    folder = fetch_engine(settings, environment) if engine is None else engine
    inspected = inspect_engine(folder.resolve())
    tokenizer = open_tokenizer(settings, environment)
    tokenizer_dir = tokenizer.fetch() if tokenizer else inspected.tokenizer_folder
    data_dir = truss / content.get("data_dir", "data")
    version = Surroundings.from_config(
        content, runtime_version=installed_version()
    ).tensorrt_llm_version
    render_engine(settings, inspected, data_dir, output, version, tokenizer_dir)
    tell(f"{output} holds the model repository for {folder}")
    return 0
