"""Fixtures: a Hub and an S3 server on loopback, and a cache per test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from huggingface_hub import constants
from tests.fakes.hub.server import HubServer, hub_server
from tests.fakes.s3.server import S3Server, s3_server
from tests.support.canaries import Canaries

from trtllm_truss.artifacts import retrying


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Set `HF_HOME` here and in child processes; huggingface_hub reads it once, on import."""
    home = tmp_path / "hf-home"
    monkeypatch.setenv("HF_HOME", str(home))
    monkeypatch.setattr(constants, "HF_HOME", str(home))
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(home / "hub"))
    return home


@pytest.fixture
def canaries(tmp_path: Path, cache: Path, request: pytest.FixtureRequest) -> Iterator[Canaries]:
    """Files around the module's `CACHE_FOLDERS`; the test fails if they change."""
    canaries = Canaries(tmp_path, *(cache / name for name in request.module.CACHE_FOLDERS))
    yield canaries
    canaries.assert_untouched()


@pytest.fixture
def hub(cache: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    with hub_server() as hub:
        template = f"{hub.url}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        monkeypatch.setattr(constants, "ENDPOINT", hub.url)
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)  # this Hub has no Xet storage
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr(retrying, "_FIRST_DELAY_S", 0.001)
        yield hub


@pytest.fixture(scope="session")
def s3_session() -> Iterator[S3Server]:
    with s3_server() as s3:
        yield s3


@pytest.fixture
def s3(s3_session: S3Server, cache: Path, monkeypatch: pytest.MonkeyPatch) -> S3Server:
    for name, value in s3_session.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(retrying, "_FIRST_DELAY_S", 0.001)
    return s3_session
