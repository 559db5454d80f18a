"""Workers of ours with the CPU example behind Dynamo's frontend."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from benchmarks.servers.dynamo import Fleet
from tests.support.paths import EXAMPLE


def config_with(folder: Path, runtime: dict[str, Any] | None = None, serving: Any = None) -> Path:
    """Write the example's configuration with changes to `model_metadata`."""
    config = yaml.safe_load(EXAMPLE.read_text())
    metadata = config["model_metadata"]
    metadata["generation"] = {"temperature": 0.0}
    metadata["runtime"].update(runtime or {})
    metadata["serving"] = serving or {}
    file = folder / "config.yaml"
    file.write_text(yaml.safe_dump(config))
    return file


@pytest.fixture(scope="session")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """That of the shared workers."""
    return config_with(tmp_path_factory.mktemp("config"))


@pytest.fixture(scope="session")
def fleet(config: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """Two workers, which the tests leave as they found them."""
    fleet = Fleet(tmp_path_factory.mktemp("fleet"))
    try:
        fleet.add_worker(config)
        fleet.add_worker(config)
        fleet.wait_for(2)
        yield fleet
    finally:
        fleet.close()
