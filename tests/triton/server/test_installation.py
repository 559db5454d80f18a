from __future__ import annotations

import pytest

from trtllm_truss.errors import TritonError
from trtllm_truss.machine.runtime import TritonInstallation, assemble_backends, find_installation


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
