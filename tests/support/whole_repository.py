"""Fetch all files of a repository."""

from __future__ import annotations

from pathlib import Path

from trtllm_truss.artifacts.open_repository import open_repository


def fetch_repository(name: str, revision: str | None = None, *, token: str | None = None) -> Path:
    """Fetch an engine repository; errors name the key `engine_repository`."""
    source = open_repository(name, revision, setting="engine_repository", token=token)
    return source.fetch(source.listing().sizes)
