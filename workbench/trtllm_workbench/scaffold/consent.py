"""The consent to run code of repositories, in words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def consent_text(metadata: Mapping[str, Any], given: str) -> str:
    """Return what `trust_remote_code` allows, and who gave it.

    Args:
        metadata: keys of `model_metadata`.
        given: by what, such as "by --trust-remote-code".
    """
    build = metadata.get("build") or {}
    names = (
        metadata.get("engine_repository"),
        build.get("checkpoint_repository"),
        metadata.get("tokenizer_repository"),
    )
    authors = " and ".join(dict.fromkeys(str(name) for name in names if name))
    pickles = " A build also loads pickled weights, which run code as well." if build else ""
    return (
        f"trust_remote_code was set {given}: Python code of {authors} runs with all rights and "
        f"secrets of the server.{pickles} Remove it unless you trust the authors."
    )
