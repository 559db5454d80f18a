"""config.yaml to Settings: every mistake has one message."""

from __future__ import annotations

import dataclasses
import re

import pytest
from tests.support.paths import ROOT

from trtllm_builder.commands import BUILD_FLAGS, PAGED_CONTEXT_USERS
from trtllm_builder.plan import FAMILIES
from trtllm_truss.errors import SettingsError
from trtllm_truss.settings.build import Build
from trtllm_truss.settings.loading import parse_settings, read_environment
from trtllm_truss.settings.model import Serving, Settings
from trtllm_truss.settings.runtime import RuntimeOptions


def refusal(**metadata: object) -> str:
    with pytest.raises(SettingsError) as caught:
        parse_settings({"model_metadata": {"engine_repository": "a/b", **metadata}})
    return caught.value.message


def test_defaults() -> None:
    settings = parse_settings({"model_metadata": {"engine_repository": "a/b"}})
    assert settings.tensor_parallelism == 1
    assert settings.tokenizer_repository is None
    assert settings.runtime == RuntimeOptions()
    assert settings.serving.start_timeout_s == 1500


@pytest.mark.parametrize(
    ("serving", "http_port"),
    [
        ({}, None),
        ({"triton_native": True}, 0),
        ({"triton_http_port": 8000}, 8000),
        ({"triton_native": True, "triton_http_port": 8000}, 8000),
    ],
)
def test_tritons_http_endpoint_is_closed_by_default(
    serving: dict[str, object], http_port: int | None
) -> None:
    metadata = {"engine_repository": "a/b", "serving": serving}
    assert parse_settings({"model_metadata": metadata}).serving.http_port == http_port


def test_platform_keys_pass() -> None:
    metadata = {"engine_repository": "a/b", "tags": ["x"], "example_model_input": {"prompt": "y"}}
    assert parse_settings({"model_metadata": metadata}).engine_repository == "a/b"


def test_unknown_key_is_refused_with_a_suggestion() -> None:
    message = refusal(tensor_paralellism=2)
    assert "model_metadata.tensor_paralellism is not a setting" in message
    assert "did you mean tensor_parallelism?" in message


def test_unknown_nested_key_is_refused_with_a_suggestion() -> None:
    assert "did you mean drain_timeout_s?" in refusal(serving={"drain_timeout": 3})


def test_an_unrelated_key_lists_the_known_ones() -> None:
    assert "known: bls_instance_count" in refusal(zzz=1)


@pytest.mark.parametrize(
    ("metadata", "part"),
    [
        ({"tensor_parallelism": 0}, "model_metadata.tensor_parallelism is 0"),
        ({"tensor_parallelism": "2"}, 'model_metadata.tensor_parallelism is "2"'),
        ({"engine_repository": ""}, 'model_metadata.engine_repository is ""'),
        ({"runtime": []}, "model_metadata.runtime is []"),
        ({"serving": {"start_timeout_s": -1}}, "model_metadata.serving.start_timeout_s is -1"),
        ({"serving": {"triton_grpc_port": 0}}, "model_metadata.serving.triton_grpc_port is 0"),
        (
            {"serving": {"triton_grpc_port": 8001, "triton_http_port": 8001}},
            "serving.triton_grpc_port is 8001: triton_http_port has the same value; choose another",
        ),
    ],
)
def test_bad_values_are_named(metadata: dict[str, object], part: str) -> None:
    assert part in refusal(**metadata)


def test_missing_engine_repository() -> None:
    with pytest.raises(SettingsError, match=r"model_metadata\.engine_repository is missing"):
        parse_settings({"model_metadata": {}})


def test_metadata_must_be_a_mapping() -> None:
    with pytest.raises(SettingsError, match="must be a mapping"):
        parse_settings({"model_metadata": ["x"]})


class TrussSecrets:
    """Secrets like Truss's: look-up with its error, no iteration."""

    def __init__(self, **secrets: str) -> None:
        self._secrets = secrets

    def __getitem__(self, name: str) -> str:
        if not self._secrets.get(name):
            raise LookupError(f"Secret {name!r} not found")
        return self._secrets[name]


@pytest.mark.parametrize(
    ("secrets", "token"),
    [
        (TrussSecrets(hf_access_token="hf_abc\n"), "hf_abc"),
        (TrussSecrets(hf_access_token=""), None),
        (TrussSecrets(), None),
        (None, None),
    ],
)
def test_token(secrets: TrussSecrets | None, token: str | None) -> None:
    environment = read_environment(secrets)  # type: ignore[arg-type]
    assert environment.hf_access_token == token
    assert "hf_abc" not in repr(environment)


def test_every_key_has_a_reader() -> None:
    """A key that nothing acts on would be dropped without a word."""
    files = (ROOT / "packages").rglob("*.py")
    code = "".join(file.read_text(encoding="utf-8") for file in files)
    read = set(re.findall(r"\.(\w+)", code))
    by_table = {row.setting for row in BUILD_FLAGS} | {row.version_setting for row in FAMILIES}
    keys = {name for section in (Settings, Serving, Build) for name in section.model_fields}
    keys |= {field.name for field in dataclasses.fields(RuntimeOptions)}
    assert keys - read - by_table - {*PAGED_CONTEXT_USERS} == set()
