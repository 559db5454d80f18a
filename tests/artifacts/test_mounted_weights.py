"""Files that Baseten delivers: mounted `weights`, and `model_cache` with a volume."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest
import truss_transfer
import yaml
from tests.support.model_module import model_module, truss_module
from tests.support.paths import ROOT

from trtllm_truss.errors import StartupError
from trtllm_truss.settings.loading import parse_settings

EXAMPLE = ROOT / "examples/baseten-weights"


def test_the_settings_name_the_mounts() -> None:
    content = yaml.safe_load((EXAMPLE / "config.yaml").read_text())
    mounted = {source["mount_location"] for source in content["weights"]}
    settings = parse_settings(content)
    assert {settings.engine_repository, settings.tokenizer_repository} == mounted


def test_its_links_lead_to_the_root() -> None:
    links = [path for path in EXAMPLE.rglob("*") if path.is_symlink()]
    assert {path.resolve().relative_to(ROOT).as_posix() for path in links} >= {
        "model/model.py",
        "requirements.txt",
        "data/triton_model_repository/tensorrt_llm/config.pbtxt",
    }


@pytest.fixture
def resolvers() -> ModuleType:
    return truss_module("templates/shared/lazy_data_resolver.py")


@pytest.fixture
def delivered(tmp_path: Path, resolvers: ModuleType, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder that Truss's resolver writes."""
    manifest = tmp_path / "bptr-manifest"
    manifest.touch()
    folder = tmp_path / "model_cache/engine"

    def write(data_dir: str) -> str:
        folder.mkdir(parents=True)
        (folder / "config.json").write_text("delivered")
        return str(tmp_path)

    monkeypatch.setattr(resolvers, "LAZY_DATA_RESOLVER_PATH", [manifest])
    monkeypatch.setattr(truss_transfer, "lazy_data_resolve", write)
    return folder


def load(folder: Path, resolver: object) -> None:
    model_module().Model(
        config={"model_metadata": {"engine_repository": str(folder)}},
        secrets={},
        data_dir=ROOT / "data",
        lazy_data_resolver=resolver,
    ).load()


def test_a_start_waits_for_the_model_cache(delivered: Path, resolvers: ModuleType) -> None:
    resolver = resolvers.LazyDataResolverV2(delivered.parent)
    with pytest.raises(StartupError, match=r"config\.json"):  # read, after the delivery
        load(delivered, resolver)
    resolver.raise_if_not_collected()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")  # Truss's own
def test_a_failed_delivery_ends_the_start(
    delivered: Path, resolvers: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(data_dir: str) -> str:
        raise OSError("403 Forbidden")

    monkeypatch.setattr(truss_transfer, "lazy_data_resolve", fail)
    resolver = resolvers.LazyDataResolverV2(delivered.parent)
    with pytest.raises(StartupError, match=r"model_cache: .*403 Forbidden.*Check"):
        load(delivered, resolver)


def test_a_start_without_a_model_cache_waits_for_nothing(
    tmp_path: Path, resolvers: ModuleType
) -> None:
    resolver = resolvers.LazyDataResolverV2(tmp_path)
    for each in (resolver, None):
        with pytest.raises(StartupError, match="does not exist"):
            load(tmp_path / "engine", each)
