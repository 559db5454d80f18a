"""The key of callers: a server that is to ask for one does not start without."""

from __future__ import annotations

from typing import Any

import pytest

from trtllm_truss.errors import SettingsError
from trtllm_truss.settings.loading import Environment, require_declared_api_key
from trtllm_truss.settings.model import Serving

DECLARED = {"secrets": {"server_api_key": None}}


def environment(key: str) -> Environment:
    return Environment(None, {}, api_key=key)


@pytest.mark.parametrize("config", [{}, {"secrets": None}, DECLARED])
@pytest.mark.parametrize("limits", [Serving(), Serving(metrics_need_key=True)])
def test_a_key_with_a_value(config: dict[str, Any], limits: Serving) -> None:
    require_declared_api_key(config, limits, environment("sk-1"))
    with pytest.raises(SettingsError, match="a header cannot have"):
        require_declared_api_key(config, limits, environment("sk 1"))


def test_without_a_value() -> None:
    require_declared_api_key({}, Serving(), environment(""))
    with pytest.raises(SettingsError, match="declares the secret server_api_key, which has no"):
        require_declared_api_key(DECLARED, Serving(), environment(""))
    for config in ({}, DECLARED):
        with pytest.raises(SettingsError, match="metrics_need_key is true, but the secret"):
            require_declared_api_key(config, Serving(metrics_need_key=True), environment(""))
