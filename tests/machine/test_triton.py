from __future__ import annotations

import sys
from pathlib import Path

import pytest

from trtllm_truss.errors import TritonError
from trtllm_truss.machine import runtime
from trtllm_truss.machine.runtime import find_installation


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
    assert (found.stub, found.library_paths) == (None, ())
    assert found.program_path == Path(sys.executable).parent
    assert [path.name for path in found.python_paths] == ["packages"]
    assert found.version is None
    (tmp_path / "opt/TRITON_VERSION").write_text("2.61.0\n")
    found = find_installation({"TRITON_SERVER_EXECUTABLE": str(executable), "PATH": ""})
    assert found.version == "2.61.0"


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
    assert all((f / f"libpython{version}.so.1.0").exists() for f in found.library_paths[1:])


def test_folders_of_the_loader_are_not_named(monkeypatch):
    """In LD_LIBRARY_PATH they would hide libraries of wheels, whose RUNPATH comes after it."""
    monkeypatch.setattr(runtime, "_LOADER_FOLDERS", ())
    folders = runtime._libpython_folders(f"{sys.version_info[0]}.{sys.version_info[1]}")
    monkeypatch.setattr(runtime, "_LOADER_FOLDERS", folders)
    assert len(find_installation({"PATH": ""}).library_paths) == 1


def test_no_server_at_all(monkeypatch):
    monkeypatch.setattr(runtime, "_wheel_executables", list)
    with pytest.raises(TritonError, match="not installed here"):
        find_installation({"PATH": ""})


def test_missing_libpython_has_a_remedy(monkeypatch):
    monkeypatch.setattr(runtime.Path, "exists", lambda _: False)
    with pytest.raises(TritonError, match=r"apt install libpython3"):
        find_installation({"PATH": ""})
