from __future__ import annotations

import sys

import pytest

from trtllm_truss.errors import TritonError
from trtllm_truss.triton.server import installation
from trtllm_truss.triton.server.installation import (
    TritonInstallation,
    assemble_backends,
    find_installation,
)


def program(path):
    path.parent.mkdir(parents=True)
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return path


def test_named_server_of_a_complete_installation_needs_no_tricks(tmp_path):
    executable = program(tmp_path / "opt/bin/tritonserver")
    found = find_installation({"TRITON_SERVER_EXECUTABLE": str(executable), "PATH": ""})
    assert found.executable == executable
    assert found.backends == tmp_path / "opt/backends"
    assert (found.stub, found.library_paths, found.program_path) == (None, (), None)


def test_the_environment_of_newer_images_comes_first_on_the_path(tmp_path, monkeypatch):
    executable = program(tmp_path / "opt/bin/tritonserver")
    (tmp_path / "venv/bin").mkdir(parents=True)
    monkeypatch.setattr(installation, "_IMAGE_ENVIRONMENT", tmp_path / "venv")
    found = find_installation({"TRITON_SERVER_EXECUTABLE": str(executable), "PATH": ""})
    assert found.program_path == tmp_path / "venv/bin"
    assert [p.name for p in found.python_paths] == ["packages"]


def test_server_on_path_wins_over_the_wheel(tmp_path):
    executable = program(tmp_path / "opt/bin/tritonserver")
    assert find_installation({"PATH": str(executable.parent)}).executable == executable


def test_wrong_variable_is_named(tmp_path):
    wrong = str(tmp_path / "nothing")
    with pytest.raises(TritonError) as failure:
        find_installation({"TRITON_SERVER_EXECUTABLE": wrong})
    assert failure.value.message.startswith(f"TRITON_SERVER_EXECUTABLE={wrong} is not")
    assert "unset it" in failure.value.message


def test_wheel_is_found_without_importing_it():
    found = find_installation({"PATH": ""})
    assert "pytriton" not in sys.modules
    version = f"{sys.version_info[0]}.{sys.version_info[1]}"
    assert found.stub is not None
    assert found.stub.parent.name == version
    assert found.library_paths[0].name == "nvidia_pytriton.libs"
    assert (found.library_paths[1] / f"libpython{version}.so.1.0").exists()


def test_no_server_at_all(monkeypatch):
    monkeypatch.setattr(installation, "_wheel_executables", list)
    with pytest.raises(TritonError, match="not installed here"):
        find_installation({"PATH": ""})


def test_missing_libpython_has_a_remedy(monkeypatch):
    monkeypatch.setattr(installation.Path, "exists", lambda _: False)
    with pytest.raises(TritonError, match=r"apt install libpython3"):
        find_installation({"PATH": ""})


def test_backends_of_the_variable_win(tmp_path):
    for source, name in (("server", "python"), ("server", "onnx"), ("mine", "onnx")):
        (tmp_path / source / name).mkdir(parents=True)
    server = TritonInstallation(tmp_path / "t", tmp_path / "server")
    environ = {"TRITON_BACKEND_DIRECTORY": str(tmp_path / "mine")}
    for _ in range(2):
        folder = assemble_backends(server, tmp_path / "run/backends", environ)
    links = {path.name: path.resolve() for path in folder.iterdir()}
    assert links["onnx"] == tmp_path / "mine/onnx"
    assert links["python"] == tmp_path / "server/python"
    assert "openvino_genai" in links
    assert assemble_backends(server, tmp_path / "run/backends", {}).joinpath("onnx").resolve() == (
        tmp_path / "server/onnx"
    )


def test_python_backend_of_the_wheel_gets_its_stub(tmp_path):
    found = find_installation({"PATH": ""})
    python = assemble_backends(found, tmp_path / "backends", {}) / "python"
    assert {p.name for p in python.iterdir()} >= {
        "libtriton_python.so",
        "triton_python_backend_stub",
        "triton_python_backend_utils.py",
    }
    assert (python / "triton_python_backend_stub").stat().st_size == found.stub.stat().st_size


def test_wrong_backend_directory_is_named(tmp_path):
    server = TritonInstallation(tmp_path / "t", tmp_path / "server")
    with pytest.raises(TritonError, match="TRITON_BACKEND_DIRECTORY=/nowhere"):
        assemble_backends(server, tmp_path / "b", {"TRITON_BACKEND_DIRECTORY": "/nowhere"})
