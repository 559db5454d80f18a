"""Kernels and tactics lie on the platform's volume, and end no start."""

from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.fakes.tensorrt_llm import SITE
from tests.support.model_module import module_at

from trtllm_truss.artifacts.listing import Listing
from trtllm_truss.engines.host import HostInfo
from trtllm_truss.serving.kernel_cache import (
    AUTOTUNER,
    VARIABLES,
    cache_variables,
    key_of,
    remove_damaged_tactics,
)
from trtllm_truss.serving.preparation import PreparedEngine
from trtllm_truss.settings.loading import Environment, parse_settings

META = {"lib_version": "1.2.1", "device_name": "H100", "device_capability": [9, 0]}
SOUND = {"metadata": META, "rank_0": {"('op',)": {"tactic": "(1, 2)"}}, "rank_1": {}}
KEY = key_of(["an engine"])


@pytest.fixture
def volume(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "volume"
    folder.mkdir()
    monkeypatch.setattr("trtllm_truss.artifacts.open_repository.WRITABLE_VOLUME", folder)
    return folder


@pytest.fixture
def variables(tmp_path: Path) -> dict[str, str]:
    return {"HOME": str(tmp_path)}


def test_the_caches_lie_on_the_volume(volume: Path, variables: dict[str, str]) -> None:
    places = cache_variables(KEY, variables)
    assert places.keys() == VARIABLES.keys()
    folder = volume / "trtllm-truss/kernels" / KEY
    assert folder.is_dir()
    assert {Path(place).parent for place in places.values()} == {folder}
    assert cache_variables(KEY, variables) == places  # compilers record absolute paths
    others = cache_variables(key_of(["another engine"]), variables)
    assert not {*others.values()} & {*places.values()}


def test_without_a_volume_the_libraries_choose(
    tmp_path: Path, variables: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    absent = tmp_path / "absent"
    monkeypatch.setattr("trtllm_truss.artifacts.open_repository.WRITABLE_VOLUME", absent)
    assert cache_variables(KEY, variables) == {}
    assert not absent.exists()


def test_a_folder_that_cannot_be_made_costs_nothing(
    volume: Path, variables: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    (volume / "trtllm-truss").touch()
    assert cache_variables(KEY, variables) == {}
    assert "kernels are not kept" in caplog.text


def test_variables_of_the_operator_and_prebuilt_kernels_win(
    volume: Path, variables: dict[str, str]
) -> None:
    Path(variables["HOME"], ".cache/flashinfer").mkdir(parents=True)
    variables["TRITON_CACHE_DIR"] = "/mine"
    assert cache_variables(KEY, variables).keys() == {AUTOTUNER}


def key_with(commit: str = "c" * 40, **metadata: Any) -> str:
    settings = parse_settings({"model_metadata": {"engine_repository": "org/model", **metadata}})
    host = HostInfo(image="image:1")
    resolved: Any = SimpleNamespace(listing=Listing(commit, ()))
    machine: Any = None
    return PreparedEngine(settings, Environment(None, {}), machine, host, resolved, "1.2.1").kernels


def test_what_may_change_a_kernel_changes_the_key() -> None:
    assert key_with() == key_with(serving={"queue_limit": 7})
    keys = [
        key_with(),
        key_with("d" * 40),
        key_with(tensor_parallelism=2),
        key_with(runtime={"llm_args": {"attn_backend": "FLASHINFER"}}),
        key_with(trust_remote_code=True),  # its code may have compiled them
    ]
    assert len({*keys}) == len(keys)


@pytest.mark.parametrize(
    "tuned",
    [
        json.dumps(SOUND)[:-9],
        "",
        "[]",
        {"rank_0": {}, "rank_1": {}},
        {"metadata": META, "rank_0": {}},  # a server died before its second rank wrote
        {"metadata": META, "rank_0": {}, "rank_1": {"('op',)": {"tactic": "<object>"}}},
        {"metadata": META, "rank_0": {}, "rank_1": {"op()": {"tactic": "1"}}},
    ],
)
def test_an_autotuners_file_that_would_end_the_start_is_removed(tmp_path: Path, tuned: Any) -> None:
    file = tmp_path / "autotuner.json"
    file.write_text(tuned if isinstance(tuned, str) else json.dumps(tuned))
    remove_damaged_tactics({AUTOTUNER: str(file)}, 2)
    assert not file.exists()


def test_files_of_other_releases_are_kept(tmp_path: Path) -> None:
    """1.2.0rc2 has a file per rank; after pull request 14441 there are entries of all ranks."""
    file = tmp_path / "autotuner.json"
    file.write_text(json.dumps({"metadata": META, "shared": {"('op',)": {"tactic": "1"}}}))
    own = file.with_suffix(".rank1.json")
    own.write_text(json.dumps({"metadata": META, "cache_data": {"('op',)": {"tactic": 3}}}))
    remove_damaged_tactics({AUTOTUNER: str(file)}, 2)
    assert file.exists()
    assert own.exists()


def test_a_second_server_computes_nothing(
    volume: Path, variables: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a stand-in that reads as strictly as the libraries."""
    log = tmp_path / "log"
    tuning = module_at(SITE / "tensorrt_llm/fake/tuning.py")

    def load() -> list[str]:
        """Return what two ranks compute; like real ones, both read before one writes."""
        caches = cache_variables(KEY, variables)
        for name, place in caches.items():
            monkeypatch.setenv(name, place)
        remove_damaged_tactics(caches, 2)
        log.write_text("")
        step = threading.Barrier(2).wait
        with ThreadPoolExecutor(2) as ranks:
            done = [ranks.submit(tuning.compute, {}, {"log": str(log)}, n, step) for n in range(2)]
        for each in done:
            each.result()
        return sorted(log.read_text().splitlines())

    computed = ["compiled rank 0", "compiled rank 1", "tuned rank 0", "tuned rank 1"]
    assert load() == computed
    assert load() == []
    file = Path(cache_variables(KEY, variables)[AUTOTUNER])
    file.write_text(file.read_text()[:-9])  # by a server that was killed
    assert load() == computed[2:]
