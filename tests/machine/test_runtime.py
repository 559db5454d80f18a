"""TensorRT-LLM in images of both eras, found without importing it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from tests.machine.images import lay_out

from trtllm_truss.machine.runtime import TensorRtLlm, find_runtime, package_folders, pythons_with

IMAGE = "nvcr.io/nvidia/tritonserver:24.08-trtllm-python-py3"


@pytest.mark.parametrize("in_environment", [True, False])
def test_the_package_of_both_eras_is_found(tmp_path: Path, in_environment: bool) -> None:
    tree = lay_out(tmp_path, "1.2.1", in_environment=in_environment)
    found = find_runtime(tree.environ, IMAGE, tree.root)
    assert (found.version, found.python, found.installed) == ("1.2.1", tree.python, True)
    assert found.library is not None
    assert found.library.is_relative_to(found.found_by)
    assert "tensorrt_llm" not in sys.modules


def test_the_pythons_with_a_package(tmp_path: Path) -> None:
    """In the second era `/usr/bin/python3`, which serves, has nothing of TensorRT-LLM."""
    tree = lay_out(tmp_path, "1.2.1", in_environment=True)
    assert pythons_with("tensorrt_llm", tree.environ, tree.root) == [tree.python]
    assert pythons_with("transformers", tree.environ, tree.root) == []


def test_the_environment_is_found_without_path(tmp_path: Path) -> None:
    """`truss` starts `/usr/bin/python3`; a wrapper may have reset ``PATH``."""
    tree = lay_out(tmp_path, "1.2.1", in_environment=True)
    found = find_runtime({"PATH": str(tmp_path / "usr/bin")}, None, tree.root)
    assert (found.version, found.python) == ("1.2.1", tree.python)


def test_the_library_leads_to_a_package_elsewhere(tmp_path: Path) -> None:
    tree = lay_out(tmp_path, "1.1.0", in_environment=True)
    (tmp_path / "opt/venv-tritonserver").rename(tmp_path / "opt/other")
    file = tmp_path / "etc/ld.so.conf.d/tensorrt-llm.conf"
    file.write_text(file.read_text().replace("venv-tritonserver", "other"))
    found = find_runtime({"PATH": ""}, None, tree.root)
    assert (found.version, found.python) == ("1.1.0", tmp_path / "opt/other/bin/python3")
    assert found.found_by.endswith("libtensorrt_llm.so")


def test_the_source_tells_the_version_without_metadata(tmp_path: Path) -> None:
    tree = lay_out(tmp_path, "1.2.1", in_environment=True)
    (metadata,) = tmp_path.glob("opt/venv-tritonserver/lib/*/*/*.dist-info/METADATA")
    metadata.unlink()
    metadata.parent.rmdir()
    assert find_runtime(tree.environ, None, tree.root).version == "1.2.1"


def test_an_image_without_the_package_is_known_by_its_release(tmp_path: Path) -> None:
    tree = lay_out(tmp_path, None, in_environment=False, release="24.02")
    found = find_runtime(tree.environ, IMAGE, tree.root)
    assert (found.version, found.python, found.installed) == ("0.8.0", None, True)
    assert found.found_by == "NVIDIA_TRITON_SERVER_VERSION=24.02"


def test_the_name_of_the_image_is_the_last_resort(tmp_path: Path) -> None:
    found = find_runtime({"PATH": ""}, IMAGE, tmp_path)
    assert (found.version, found.installed, found.installed_version) == ("0.12.0", False, None)
    assert IMAGE in found.found_by
    assert find_runtime({"PATH": ""}, "my/image:1", tmp_path) == TensorRtLlm()


def test_packages_of_an_environment_with_the_systems(tmp_path: Path) -> None:
    lay_out(tmp_path, "1.0.0", in_environment=False)
    environment = tmp_path / "venv"
    (environment / "bin").mkdir(parents=True)
    (environment / "bin/python3").symlink_to(tmp_path / "usr/bin/python3")
    (environment / "lib/python3.12/site-packages").mkdir(parents=True)
    settings = f"home = {tmp_path}/usr/bin\ninclude-system-site-packages = true\n"
    (environment / "pyvenv.cfg").write_text(settings)
    assert [folder.name for folder in package_folders(environment / "bin/python3")] == [
        "site-packages",
        "dist-packages",
    ]
    (environment / "pyvenv.cfg").write_text(settings.replace("true", "false"))
    assert len(package_folders(environment / "bin/python3")) == 1
