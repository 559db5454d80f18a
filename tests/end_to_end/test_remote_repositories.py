"""`trtllm-truss serve` with remote engines and tokenizers, from start to answer."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.fakes.hub.server import hub_server
from tests.fakes.s3.server import s3_server
from tests.fakes.triton import FAKE_ENGINE, write_engine
from tests.support.paths import EXAMPLE, ROOT
from tests.support.smollm2 import smollm2_tokenizer
from tests.support.truss_process import Served
from tests.support.waiting import settles

from trtllm_truss.engines.manifest import Manifest, record_files, write_manifest

pytestmark = pytest.mark.server

TOKEN = "hf_secretsecretsecret"


def tokenizer_json() -> bytes:
    return smollm2_tokenizer()._backend.to_str().encode()


def write_config(folder: Path, **metadata: Any) -> Path:
    content = yaml.safe_load(EXAMPLE.read_text())
    content["external_package_dirs"] = [str(ROOT / "packages")]
    content["requirements_file"] = "./requirements.txt"
    content["secrets"] = {"hf_access_token": None}
    content["model_metadata"] = metadata
    file = folder / "config.yaml"
    file.write_text(yaml.safe_dump(content))
    (folder / "requirements.txt").touch()
    return file


@contextmanager
def serving(config: Path, environment: dict[str, str]) -> Iterator[Served]:
    served = Served(config, environment)
    try:
        yield served.wait_until_ready()
        assert served.end() == 0, served.log
    finally:
        if served.process.poll() is None:
            served.process.kill()
            served.process.wait()


def proc(pid: int, name: str) -> str:
    return Path(f"/proc/{pid}/{name}").read_text(errors="replace")


def test_private_engine_and_tokenizer(tmp_path: Path) -> None:
    with hub_server() as hub:
        engine = write_engine(tmp_path / "engine")
        files = {file.name: file.read_bytes() for file in engine.iterdir()}
        hub.add("org/engine", files, private=True)
        hub.add("org/words", {"tokenizer.json": tokenizer_json()}, private=True)
        hub.add_token(TOKEN)
        config = write_config(
            tmp_path,
            engine_repository="org/engine",
            tokenizer_repository="org/words",
        )
        home = tmp_path / "hf-home"
        environment = {
            **hub.environment,
            **FAKE_ENGINE,
            "HF_HOME": str(home),
            "TRUSS_SECRET_hf_access_token": TOKEN,
        }
        body = {"prompt": "The capital of France is", "max_tokens": 2, "stream": False}
        with serving(config, environment) as served:
            text = served.post(body).json()["text"]
            assert text
            for pid, name in served.processes().items():
                assert TOKEN not in proc(pid, "cmdline"), name
                if name in ("tritonserver", "triton_python_b"):
                    assert TOKEN not in proc(pid, "environ"), name
            assert "tritonserver" in served.processes().values()
        assert TOKEN not in served.log
        assert "engine_repository 'org/engine': fetched in" in served.log
        assert not any(TOKEN in request.path for request in hub.requests)
        assert {request.token for request in hub.asked_for("/files/*")} == {None}
        hub.forget()
        with serving(config, environment) as served:
            assert served.post(body).json()["text"] == text
        assert {request.path.split("/")[1] for request in hub.requests} == {"api"}
    assert not [path for path in home.rglob("*") if TOKEN in path.name]


@pytest.mark.thorough
def test_the_layout_of_lmi_in_s3(tmp_path: Path) -> None:
    engine = write_engine(tmp_path / "engine")
    files = {f"llm/1/{file.name}": file.read_bytes() for file in engine.iterdir()}
    files |= {"llm/config.pbtxt": b'name: "tensorrt_llm"', "llm/tokenizer.json": tokenizer_json()}
    with s3_server() as s3:
        s3.upload("engines", "trtllm/v1", files)
        config = write_config(tmp_path, engine_repository="s3://engines/trtllm/v1/")
        environment = {
            **s3.environment,
            "HF_HOME": str(tmp_path / "hf-home"),
            **FAKE_ENGINE,
        }
        with serving(config, environment) as served:
            answer = served.post({"prompt": "Hello", "max_tokens": 3, "stream": False})
            assert answer.status_code == 200, answer.text
            assert answer.json()["usage"]["completion_tokens"] == 3
            secret = s3.environment["AWS_SECRET_ACCESS_KEY"]
            for pid, name in served.processes().items():
                if name in ("tritonserver", "triton_python_b"):
                    assert secret not in proc(pid, "environ"), name
        assert "fetched in" in served.log
        with serving(config, environment) as served:
            assert "fetching" not in served.log


def test_weights_that_the_platform_mounted(tmp_path: Path) -> None:
    """A changed byte lets the engine start, and makes the server unhealthy once it is found."""
    mount = write_engine(tmp_path / "mount")
    (mount / "tokenizer.json").write_bytes(tokenizer_json())
    names = [file.name for file in mount.iterdir()]
    write_manifest(mount, Manifest(files=record_files(mount, names)))
    config = write_config(tmp_path, engine_repository="org/engine")
    content = yaml.safe_load(config.read_text())
    content["weights"] = [{"source": "hf://org/engine@main", "mount_location": str(mount)}]
    config.write_text(yaml.safe_dump(content))
    with hub_server() as hub:
        environment = {**hub.environment, "HF_HOME": str(tmp_path / "hf-home"), **FAKE_ENGINE}
        with serving(config, environment) as served:
            answer = served.post({"prompt": "Hello", "max_tokens": 3, "stream": False})
            assert answer.status_code == 200, answer.text
            assert settles(lambda: "mounted files are as" in served.log)
            assert served.is_healthy()
        description = mount / "config.json"
        description.write_text(description.read_text().replace("  ", " \t", 1))
        served = Served(config, environment)
        try:
            assert settles(lambda: "config.json differs from" in served.log)
            assert not served.is_healthy()
            assert served.metric("mounted_files_differing") == 1
        finally:
            assert served.end() == 0
        assert hub.requests == []
