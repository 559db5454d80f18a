"""Servers of the end-to-end tests."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.fakes.tensorrt_llm import config_for_checkpoint, fake_library, write_checkpoint
from tests.fakes.triton import FAKE_ENGINE, config_for, serve_engine, write_engine
from tests.support.smollm2 import smollm2_file
from tests.support.truss_process import Served, free_port, write_greedy_example

from trtllm_workbench.scaffold.docker_server import own_server_section

SECRETS = {
    **dict.fromkeys(
        ("BASETEN_API_KEY", "OPENAI_API_KEY", "TRUSS_SECRET_hf_access_token"), "s3cr3t"
    ),
    **dict.fromkeys(("HUGGINGFACEHUB_API_TOKEN", "BASETEN_TRUSS_AUTH_API_KEY"), "s3cr3t"),
    "HTTPS_PROXY": "http://me:s3cr3t@127.0.0.1:9",
}


@pytest.fixture(scope="session")
def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Served]:
    """One shared server of each kind of engine, with secrets in its environment.

    All serve the same model. Tests must leave it running. The parameter is `cpu`, `own` for the
    same engine behind our own server, or a version of the LLM API's fake. Without `--servers all`,
    `own` has a compiled stand-in, which starts in a quarter of the time.
    """
    shape = {"docker_server": own_server_section(None)} if request.param == "own" else {}
    if shape and request.config.getoption("--servers") == "some":
        engine = write_engine(tmp_path_factory.mktemp("engine"), limits={"max_seq_len": 8192})
        served = Served(config_for(engine, sections=shape), {**FAKE_ENGINE, **SECRETS})
    elif request.param in ("cpu", "own"):
        arguments = ["--console", str(free_port())]
        config = write_greedy_example(tmp_path_factory.mktemp("config"), **shape)
        served = Served(config, SECRETS, arguments, sys.executable)
    else:
        folder = write_checkpoint(tmp_path_factory.mktemp("llm") / "model", smollm2_file())
        settings = {"runtime": {"guided_decoding_backend": "xgrammar"}}
        config = config_for_checkpoint(folder, **settings)
        environment = {**fake_library(request.param), **SECRETS}
        served = Served(config, environment, python=sys.executable)
    try:
        yield served.wait_until_ready()
        assert served.end() == 0, served.log
    finally:
        if served.process.poll() is None:
            served.process.kill()
            served.process.wait()


@pytest.fixture
def temporary() -> Iterator[Path]:
    """A folder for the temporary files of a start, which must leave none."""
    folder = Path(tempfile.mkdtemp())
    yield folder
    assert not list(folder.iterdir())
    folder.rmdir()


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[Served]:
    """A server with the fake engine for one test, which may kill it."""
    served = serve_engine(write_engine(tmp_path / "engine", step_ms=10))
    try:
        yield served.wait_until_ready()
    finally:
        if served.process.poll() is None:
            served.end()
