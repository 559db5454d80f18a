"""The layout of a container on disk."""

from __future__ import annotations

import compileall
import py_compile
import re
from importlib.util import cache_from_source
from pathlib import Path

import pytest
import yaml
from tests.machine.images import NVIDIA_FOLDERS
from tests.support.paths import ROOT

from trtllm_truss.configuration import read_config
from trtllm_truss.errors import SettingsError
from trtllm_workbench.cli.layout import lay_out
from trtllm_workbench.cli.truss_server import own_server

IMPORT = re.compile(r"^ *(?:from|import) (\w+)", re.MULTILINE)


@pytest.fixture(scope="module")
def truss(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("layout") / "truss"
    names = ("model/model.py", "data/a", "packages/ours/__init__.py", "packages/ours/part/a.py")
    names += ("data/a.log", "packages/ours/lib/a.py")  # Truss ignores them
    for file in (folder / name for name in names):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("")
    (folder / "config.yaml").write_text("model_name: a\npython_version: py311\n")
    py_compile.compile(str(folder / "packages/ours/part/a.py"))
    return folder


@pytest.fixture(scope="module")
def root(truss: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The layout of the Truss in an image whose ``/app`` NVIDIA has filled before."""
    folder = tmp_path_factory.mktemp("root")
    for name in NVIDIA_FOLDERS:
        (folder / "app" / name).mkdir(parents=True)
        (folder / "app" / name / "__init__.py").write_text("NVIDIA")
    from truss.base.constants import SERVER_CODE_DIR, SHARED_SERVING_AND_TRAINING_CODE_DIR

    for code in (SERVER_CODE_DIR, SHARED_SERVING_AND_TRAINING_CODE_DIR):
        compileall.compile_dir(code, quiet=1)  # pip has done so, uv has not
    lay_out(truss, None, folder)
    return folder


@pytest.mark.filterwarnings("ignore")  # of what Truss imports
def test_compiled_modules_come_along_and_are_current(truss: Path, root: Path) -> None:
    """A start would compile the package again; Python compares the times of sources."""
    source = truss / "packages/ours/part/a.py"
    (compiled,) = source.parent.glob("__pycache__/a.*")
    ours = root / "packages/ours"
    copied = ours / compiled.relative_to(truss / "packages/ours")
    assert copied.read_bytes() == compiled.read_bytes()
    assert (ours / "part/a.py").stat().st_mtime == source.stat().st_mtime
    assert not (ours / "__pycache__").exists()


@pytest.mark.filterwarnings("ignore")  # of what Truss imports
def test_external_packages_replace_bundled_ones(truss: Path, tmp_path: Path) -> None:
    """The examples name the packages that the Truss bundles: each file is placed twice."""
    bundled, other = truss / "packages", tmp_path / "other"
    source = other / "ours/part/a.py"
    source.parent.mkdir(parents=True)
    source.write_text("OTHER = 1")
    py_compile.compile(str(source))
    (compiled,) = bundled.glob("ours/part/__pycache__/a.*")
    before = compiled.read_bytes()
    config = tmp_path / "config.yaml"
    folders = [str(bundled), str(other)]
    config.write_text(f"model_name: a\npython_version: py311\nexternal_package_dirs: {folders}\n")
    root = tmp_path / "root"
    root.mkdir()
    lay_out(truss, config, root)
    placed = root / "packages/ours/part"
    assert (placed / "a.py").read_text() == "OTHER = 1"
    (copied,) = placed.glob("__pycache__/a.*")
    (other_compiled,) = source.parent.glob("__pycache__/a.*")
    assert copied.read_bytes() == other_compiled.read_bytes()
    assert compiled.read_bytes() == before


@pytest.mark.filterwarnings("ignore")  # of what Truss imports
def test_relative_folders_keep_their_place(
    truss: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server runs in another folder."""
    monkeypatch.chdir(tmp_path)
    metadata = {
        "engine_repository": "./engine",
        "tokenizer_repository": "org/tokenizer",
        "lora_adapters": {"sql": "../sql@2", "chat": "org/chat@main"},
        "build": {"checkpoint_repository": "./checkpoint"},
        "runtime": {"encoder_model_path": "./encoder"},
        "generation": {"stop_words": ["./", "../"]},
    }
    config = tmp_path / "config.yaml"
    config.write_text(
        yaml.safe_dump({"model_name": "a", "python_version": "py311", "model_metadata": metadata})
    )
    root = tmp_path / "root"
    root.mkdir()
    lay_out(truss, config, root)
    laid_out = yaml.safe_load((root / "app/config.yaml").read_text())["model_metadata"]
    assert laid_out == metadata | {
        "engine_repository": f"{tmp_path}/engine",
        "lora_adapters": {"sql": f"{tmp_path.parent}/sql@2", "chat": "org/chat@main"},
        "build": {"checkpoint_repository": f"{tmp_path}/checkpoint"},
        "runtime": {"encoder_model_path": f"{tmp_path}/encoder"},
    }


@pytest.mark.filterwarnings("ignore")  # of what Truss imports
def test_trusss_own_modules_are_compiled(root: Path) -> None:
    modules = [file for file in (root / "app").rglob("*.py") if file.parent.name != "model"]
    server = [file for file in modules if file.parent.name not in NVIDIA_FOLDERS]
    assert {Path(cache_from_source(str(file))).is_file() for file in server} == {True}


@pytest.mark.filterwarnings("ignore")  # of what Truss imports
def test_what_truss_ignores_is_left_out(truss: Path, root: Path) -> None:
    """A model that needs such a file must fail here as in the image."""
    left_out = {Path("app/data/a.log"), Path("packages/ours/lib/a.py")}
    assert (truss / "data/a.log").is_file()
    assert not {path for path in left_out if (root / path).exists()}
    assert (root / "app/data/a").is_file()


@pytest.mark.filterwarnings("ignore")  # of what Truss imports
def test_nvidias_folders_in_app_stay_and_are_not_imported(root: Path) -> None:
    """The server runs ``/app/main.py``, so ``/app`` is first on its path."""
    app = root / "app"
    for name in NVIDIA_FOLDERS:
        (file,) = (app / name).iterdir()
        assert file.read_text() == "NVIDIA"
    assert {"main.py", "config.yaml", "model", "data"} <= {file.name for file in app.iterdir()}
    for file in (*app.rglob("*.py"), *(ROOT / "packages").rglob("*.py"), ROOT / "model/model.py"):
        assert not {*IMPORT.findall(file.read_text())} & {*NVIDIA_FOLDERS}, file


@pytest.mark.filterwarnings("ignore")  # of what Truss imports
@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("resources: 3", "config.yaml: resources is 3; it must be a mapping."),
        ("resources: {accelerator: 3}", "Expected string, dict"),
        ("resources: {accelerator: H1000}", 'resources.accelerator is "H1000": unsupported'),
        ("runtime: 3", "config.yaml: runtime is 3; it must be a mapping."),
        ("runtime: {predict_concurrency: x}", 'config.yaml: runtime.predict_concurrency is "x": '),
        ("environment_variables:", "environment_variables must be a mapping."),
        ("environment_variables: [A=hidden]", "environment_variables must be a mapping."),
        ("secrets: hidden", "config.yaml: secrets must be a mapping."),
        ("secrets: {a: [hidden]}", "config.yaml: secrets.a: input should be a valid string."),
        ("data_dir: 3", "config.yaml: data_dir is 3; it must be a string."),
        ("data_dir:", "config.yaml: data_dir is null; it must be a string."),
        ("requirements_file: 3", "requirements_file is 3; that file does not exist."),
        ("external_package_dirs: [3]", "external_package_dirs names 3; "),
        ("model_name: b", 'the key "model_name" has two values; keep one (line 2).'),
        ("runtime: {a: 1, b: 2, a: 1}", 'the key "a" has two values; keep one (line 2).'),
        ("weights: 3", "config.yaml: weights is 3; it must be a list."),
        ("weights: [{source: hf://a/b}]", "config.yaml: weights[0].mount_location is missing."),
    ],
)
def test_wrong_types_of_trusss_keys(truss: Path, tmp_path: Path, line: str, sentence: str) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(f"model_name: a\n{line}\n")
    root = tmp_path / "root"
    root.mkdir()
    with pytest.raises(SettingsError) as caught:
        lay_out(truss, config, root)
    assert sentence in caught.value.message
    assert "hidden" not in caught.value.message
    assert "\n" not in caught.value.message


def test_a_merged_mapping_may_repeat_a_key(tmp_path: Path) -> None:
    merged = "a: &a {x: 1, y: 1}\nb: &b {x: 2, z: 2}\nc: {<<: [*a, *b], y: 3}\n"
    (tmp_path / "config.yaml").write_text(merged)
    assert read_config(tmp_path, None)["c"] == {"x": 1, "y": 3, "z": 2}


@pytest.mark.parametrize("value", ["3", "[a]"])
def test_docker_server_is_a_mapping(tmp_path: Path, value: str) -> None:
    (tmp_path / "config.yaml").write_text(f"docker_server: {value}\n")
    with pytest.raises(SettingsError, match=r"docker_server is .*; it must be a mapping"):
        own_server(tmp_path, None)
