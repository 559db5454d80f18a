"""Compatibility of CUDA and driver, decided as NVIDIA's entrypoint does."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.machine.images import lay_out
from tests.support.shared_library import write_library

from trtllm_truss.machine.describe import CompatibilityMode, MachineLimits, check_machine, find_cuda

NATIVE, FORWARD = CompatibilityMode.NATIVE, CompatibilityMode.FORWARD
MINOR, UNSUPPORTED = CompatibilityMode.MINOR, CompatibilityMode.UNSUPPORTED
NOT_SUPPORTED_ON_DEVICE = 804  # CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE: a GeForce


@pytest.mark.parametrize(
    ("driver", "cuda", "compat", "initializes", "mode"),
    [
        ("590.44.01", "13.1.0.036", "590.44.01", True, NATIVE),
        ("595.10", "13.1.0.036", "590.44.01", True, NATIVE),
        ("535.104.05", "13.1.0.036", "590.44.01", True, FORWARD),
        ("580.95.05", "13.1.0.036", "590.44.01", True, FORWARD),
        ("580.95.05", "13.1.0.036", "590.44.01", False, MINOR),
        ("535.104.05", "13.1.0.036", "590.44.01", False, UNSUPPORTED),
        ("535.104.05", "12.9.1.010", "575.57.08", False, MINOR),
        ("470.82.01", "12.9.1.010", "575.57.08", False, UNSUPPORTED),
        ("535.104.05", "12.9.1.010", None, False, NATIVE),
        ("535.104.05", "13.1.0.036", None, True, UNSUPPORTED),
        (None, "13.1.0.036", "590.44.01", True, CompatibilityMode.NO_DRIVER),
    ],
)
def test_the_mode_follows_driver_and_trial(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    driver: str | None,
    cuda: str,
    compat: str | None,
    initializes: bool,
    mode: CompatibilityMode,
) -> None:
    tree = lay_out(tmp_path, "1.2.1", in_environment=True, compat=compat)
    tried: list[Path] = []

    def trial(folder: Path, _: object) -> bool:
        tried.append(folder)
        return initializes

    monkeypatch.setattr("trtllm_truss.machine.describe._initializes", trial)
    found = find_cuda(driver, {**tree.environ, "CUDA_VERSION": cuda}, tree.root)
    assert (found.mode, found.version, found.compat_driver_version) == (mode, cuda, compat)
    folder = tmp_path / "usr/local/cuda/compat/lib.real"
    assert found.library_paths == ((folder,) if mode is FORWARD else ())
    is_older = driver is not None and compat is not None and driver < compat
    assert tried == ([folder] if is_older else [])


@pytest.mark.parametrize(("answer", "mode"), [(0, FORWARD), (NOT_SUPPORTED_ON_DEVICE, UNSUPPORTED)])
def test_the_trial_initializes_the_drivers_library(
    tmp_path: Path, answer: int, mode: CompatibilityMode
) -> None:
    tree = lay_out(tmp_path, "1.2.1", in_environment=True)
    host = write_library(tmp_path / "host/libcuda.so.1", {"cuInit": 3})
    library = tmp_path / "usr/local/cuda/compat/lib.real/libcuda.so.590.44.01"
    write_library(library, {"cuInit": answer})
    environ = {**tree.environ, "LD_LIBRARY_PATH": str(host.parent)}
    assert find_cuda("535.104.05", environ, tree.root).mode is mode
    library.write_bytes(b"not a library")
    assert find_cuda("535.104.05", environ, tree.root).mode is UNSUPPORTED


def test_the_toolkits_own_file_has_its_version(tmp_path: Path) -> None:
    file = tmp_path / "usr/local/cuda/version.json"
    file.parent.mkdir(parents=True)
    file.write_text('{"cuda": {"name": "CUDA SDK", "version": "12.9.1"}}')
    found = find_cuda("470.82.01", {}, tmp_path)
    assert (found.version, found.mode) == ("12.9.1", UNSUPPORTED)
    assert found.driver_fits is None  # what runs here may bring another toolkit
    file.write_text("[]")
    found = find_cuda("575.57.08", {}, tmp_path)
    assert (found.version, found.mode) == (None, CompatibilityMode.NO_CUDA)
    assert found.driver_fits is None


@pytest.mark.parametrize(
    ("driver", "shm_bytes", "ranks", "codes"),
    [
        ("590.44.01", 1 << 30, 8, []),
        ("590.44.01", 64 << 20, 1, []),
        ("590.44.01", 64 << 20, 2, ["shared_memory_small"]),
        (None, 64 << 20, 2, ["no_driver", "shared_memory_small"]),
        (None, 64 << 20, 0, []),
    ],
)
def test_the_warnings_of_nvidias_entrypoint(
    tmp_path: Path, driver: str | None, shm_bytes: int, ranks: int, codes: list[str]
) -> None:
    tree = lay_out(tmp_path, "1.2.1", in_environment=True)
    cuda = find_cuda(driver, tree.environ, tree.root)
    limits = MachineLimits(shm_bytes, shm_bytes, None, None, None, 8, None, None)
    assert [finding.code for finding in check_machine(cuda, limits, ranks)] == codes
