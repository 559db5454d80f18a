"""The Hugging Face token: absent, empty and malformed values are distinguished."""

from __future__ import annotations

from pathlib import Path

import pytest

from trtllm_truss.errors import SettingsError
from trtllm_truss.settings import loading
from trtllm_truss.settings.loading import read_environment

VARIABLE = "TRUSS_SECRET_hf_access_token"


class TrussSecrets(dict[str, str]):
    """Secrets like Truss's, which does not distinguish empty from undeclared ones."""


@pytest.fixture(autouse=True)
def no_secret(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setattr(loading, "_FILE", tmp_path / "hf_access_token")


def token(secrets: TrussSecrets | None = None) -> str | None:
    return read_environment(secrets).hf_access_token


def test_absent() -> None:
    assert token() is token(TrussSecrets()) is None


def test_empty(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "hf_access_token").touch()
    assert token(TrussSecrets()) == ""
    monkeypatch.setenv(VARIABLE, " \n")
    assert token() == token(TrussSecrets()) == ""


def test_set(monkeypatch: pytest.MonkeyPatch) -> None:
    assert token(TrussSecrets(hf_access_token="hf_a\n")) == "hf_a"
    monkeypatch.setenv(VARIABLE, "hf_b")
    assert token() == "hf_b"
    assert "hf_b" not in repr(read_environment())


@pytest.mark.parametrize("value", ["hf_a hf_b", "hf_a\nhf_b", "hf_ä"])
def test_impossible(value: str) -> None:
    with pytest.raises(SettingsError, match="set it to the token alone") as caught:
        token(TrussSecrets(hf_access_token=value))
    assert "hf_a" not in caught.value.message.replace("hf_access_token", "")
