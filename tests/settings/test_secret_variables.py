"""Secrets leave the environment of a server, and the memory that shows it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.model_module import model_module

from trtllm_truss.endpoints.application import start_service
from trtllm_truss.errors import StartupError
from trtllm_truss.observability.status import ServiceStatus
from trtllm_truss.processes.secret_variables import is_secret

_NAMES = (
    *("TRUSS_SECRET_hf_access_token", "TRUSS_SECRET_server_api_key", "HF_TOKEN"),
    *("HUGGING_FACE_HUB_TOKEN", "BASETEN_API_KEY", "OPENAI_API_KEY", "HONEYCOMB_API_KEY"),
    *("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "MYSQL_PWD"),
    *("AWS_CONTAINER_AUTHORIZATION_TOKEN", "OTEL_EXPORTER_OTLP_HEADERS", "PGPASSWORD"),
    *("OTEL_EXPORTER_OTLP_TRACES_HEADERS", "NATS_AUTH_PASSWORD", "NATS_AUTH_NKEY"),
    *("AZURE_STORAGE_CONNECTION_STRING", "SENTRY_DSN", "REDISCLI_AUTH", "KEY_PASSPHRASE"),
)
SECRETS = {
    **dict.fromkeys(_NAMES, "PLANTED"),
    "DATABASE_URL": "postgres://me:PLANTED@host/db",
    "HTTPS_PROXY": "http://PLANTED@proxy:3128",
    "https_proxy": "me:PLANTED@proxy:3128",
}
OTHERS = {
    "PATH": "/bin:/usr/bin",
    "PWD": "/app",
    "OLDPWD": "/",
    "HF_HOME": "/cache",
    "http_proxy": "http://proxy:3128",
    "TOKENIZERS_PARALLELISM": "false",
    "AWS_DEFAULT_REGION": "eu-west-1",
    "DYN_NAMESPACE": "dynamo",
    "SSH_AUTH_SOCK": "/run/ssh",
    "EMPTY": "",
}
PROGRAM = """
import json, os, pathlib
from trtllm_truss.processes.secret_variables import expose_secrets, hide_secrets

def shown():
    return pathlib.Path("/proc/self/environ").read_bytes().decode().split("\\0")

before = dict(os.environ)
hide_secrets()
hidden, seen = dict(os.environ), shown()
in_child = os.popen("env").read()
expose_secrets(before)
exposed = dict(os.environ)
hide_secrets()
print(json.dumps([before, hidden, seen, in_child, exposed, dict(os.environ), shown()]))
"""


def test_secrets_are_hidden_and_come_back_for_a_second_start() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={**OTHERS, **SECRETS, "LC_CTYPE": "C.UTF-8"},
        capture_output=True,
        check=True,
        text=True,
    )
    before, hidden, seen, in_child, exposed, again, seen_again = json.loads(ended.stdout)
    assert hidden.items() >= OTHERS.items()
    assert not hidden.keys() & SECRETS.keys()
    assert "PLANTED" not in "".join((*seen, *seen_again, in_child))
    assert {f"{name}={value}" for name, value in OTHERS.items()} <= {*seen}
    assert exposed == before
    assert again == hidden


@pytest.mark.parametrize("name", SECRETS)
def test_secrets_are_known_by_name_or_value(name: str) -> None:
    assert is_secret(name, SECRETS[name])


@pytest.mark.parametrize("name", OTHERS)
def test_other_variables_are_not_secrets(name: str) -> None:
    assert not is_secret(name, OTHERS[name])


def test_a_second_load_knows_the_secrets_of_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Truss calls `load` again if it fails, then without the secrets in the environment."""
    monkeypatch.setenv("TRUSS_SECRET_server_api_key", "PLANTED")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "PLANTED")
    model = model_module().Model({}, object(), tmp_path)
    known = model._read_environment()
    monkeypatch.delenv("TRUSS_SECRET_server_api_key")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    assert model._read_environment() is known
    assert known.api_key == "PLANTED"
    with pytest.raises(StartupError):
        start_service(
            {"model_metadata": {"engine_repository": str(tmp_path)}},
            model._read_environment,
            tmp_path,
            ServiceStatus(),
        )
    assert os.environ["AWS_SECRET_ACCESS_KEY"] == "PLANTED"  # for downloads
