"""`weights` of a new config.yaml: the files of a start, delivered by the platform."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from glob import escape
from importlib import metadata
from typing import Any, NamedTuple

from trtllm_truss.artifacts.listing import is_commit
from trtllm_truss.artifacts.open_repository import is_on_hub, is_remote
from trtllm_truss.baseten import Need
from trtllm_truss.settings.loading import ACCESS_TOKEN_SECRET

S3_SECRET = "aws_credentials"  # noqa: S105 - the secret's name
_FOLDERS = {
    "engine_repository": "/models/engine",
    "tokenizer_repository": "/models/tokenizer",
    "build.checkpoint_repository": "/models/checkpoint",
}
_DISTRIBUTION = "trtllm-truss"
_PIN = re.compile(r"truss\s*==\s*([0-9][0-9a-z.]*)\s*;")


class Delivery(NamedTuple):
    """What the platform mounts.

    Attributes:
        weights: the section of config.yaml.
        revisions: the commit by the key of its repository.
        downloaded_bytes: what is left for the start to fetch.
        left: repositories that the start fetches.
    """

    weights: Sequence[Mapping[str, Any]]
    revisions: Mapping[str, str]
    downloaded_bytes: int
    left: Sequence[str]


def deliver(needs: Sequence[Need], *, wanted: bool, with_token: bool) -> Delivery:
    """Plan the delivery of all remote files.

    Args:
        needs: the files of a start, by repository.
        wanted: False leaves all of them to the start.
        with_token: the repositories were read with a token, so that the platform needs it too.
    """
    entries: dict[str, dict[str, Any]] = {}
    revisions: dict[str, str] = {}
    left = []
    for need in needs:
        if not is_remote(need.repository):
            continue
        commit = need.source.listing().commit
        if not wanted or (is_on_hub(need.repository) and not is_commit(commit)):
            left.append(need)
            continue
        source, secret = need.repository, S3_SECRET
        if is_on_hub(need.repository):
            source, secret = f"hf://{need.repository}@{commit}", ACCESS_TOKEN_SECRET
            revisions[need.setting] = commit
        entry = entries.setdefault(
            source, {"source": source, "mount_location": _FOLDERS[need.setting], "paths": set()}
        )
        entry["paths"] |= {*need.paths}
        if with_token or secret == S3_SECRET:
            entry["auth"] = {"auth_method": "CUSTOM_SECRET", "auth_secret_name": secret}
    return Delivery(
        [_with_patterns(entry) for entry in entries.values()],
        revisions,
        sum(need.total_bytes for need in left),
        [need.repository for need in left],
    )


def known_truss() -> str | None:
    """Return the release of Truss that this one is tested with; None if not installed by pip."""
    try:
        required = metadata.requires(_DISTRIBUTION) or ()
    except metadata.PackageNotFoundError:
        return None
    return next((found[1] for line in required if (found := _PIN.match(line))), None)


def _with_patterns(entry: dict[str, Any]) -> dict[str, Any]:
    paths = entry.pop("paths")
    auth = entry.pop("auth", None)
    entry["allow_patterns"] = [escape(path) for path in sorted(paths)]
    return entry if auth is None else {**entry, "auth": auth}
