"""A worker of Dynamo takes requests without a key, and says so."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from tests.support.paths import EXAMPLE

from trtllm_dynamo.configuration import check_configuration, is_on_the_network, local_addresses
from trtllm_truss.errors import SettingsError
from trtllm_truss.settings.loading import parse_settings
from trtllm_workbench.cli.main import main

SETTINGS = parse_settings({"model_metadata": {"engine_repository": "org/name"}})
OF_WORKER = {"DYN_TCP_RPC_HOST": "127.0.0.1", "DYN_TCP_RESPONSE_STREAM_HOST": "127.0.0.1"}


def test_a_key_that_nobody_asks_for_is_refused() -> None:
    check_configuration(SETTINGS, {}, has_key=False)
    with pytest.raises(
        SettingsError, match=r"server_api_key .* does not check keys.* Dynamo's frontend"
    ):
        check_configuration(SETTINGS, {}, has_key=True)


@pytest.mark.parametrize("is_declared", [True, False])
def test_the_command_refuses_a_declared_key_and_one_that_is_set(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    is_declared: bool,
) -> None:
    config = yaml.safe_load(EXAMPLE.read_text())
    if is_declared:
        config["secrets"] = {"server_api_key": None}
    else:
        monkeypatch.setenv("TRUSS_SECRET_server_api_key", "PLANTED")
    file = tmp_path / "config.yaml"
    file.write_text(yaml.safe_dump(config))
    assert main(["dynamo", "--truss", str(tmp_path), "--config", str(file)]) == 2
    printed = capsys.readouterr().err
    assert "the secret server_api_key is declared or set" in printed
    assert "PLANTED" not in printed


@pytest.mark.parametrize(
    ("variables", "added"),
    [
        ({"DYN_DISCOVERY_BACKEND": "file"}, OF_WORKER),
        ({"DYN_DISCOVERY_BACKEND": "mem"}, OF_WORKER),
        (
            {"DYN_DISCOVERY_BACKEND": "file", "DYN_TCP_RPC_HOST": "10.0.0.5"},
            {"DYN_TCP_RESPONSE_STREAM_HOST": "127.0.0.1"},
        ),
        ({"DYN_DISCOVERY_BACKEND": "etcd"}, {}),
        ({"DYN_DISCOVERY_BACKEND": "kubernetes"}, {}),
        ({}, {}),  # etcd is Dynamo's default
    ],
)
def test_a_worker_of_one_host_listens_on_loopback(
    variables: dict[str, str], added: dict[str, str]
) -> None:
    assert local_addresses(variables) == added


@pytest.mark.parametrize(
    ("host", "is_open"),
    [(None, True), ("0.0.0.0", True), ("10.0.0.5", True), ("127.0.0.1", False), ("::1", False)],
)
def test_a_port_on_the_network_is_known(host: str | None, is_open: bool) -> None:
    variables = {} if host is None else {"DYN_TCP_RPC_HOST": host}
    assert is_on_the_network(variables) is is_open
