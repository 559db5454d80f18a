"""Equal contents are fetched once and linked at every path."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.fakes.hub.server import HubServer
from tests.fakes.s3.server import S3Server
from tests.support.whole_repository import fetch_repository

RANK = bytes(range(256)) * 4000
REPOSITORIES = {
    "small": {"chat_template.jinja": b"{{ a }}", "copies/chat_template.jinja": b"{{ a }}"},
    "empty": {"special_tokens_map.json": b"", "added_tokens.json": b"", "1/marker": b""},
    "large": {"rank0.engine": RANK, "copy/rank0.engine": RANK, "config.json": b"{}"},
    "many": {f"{number}.json": b"{}" for number in range(40)},
}


def contents(folder: Path) -> dict[str, bytes]:
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


@pytest.mark.parametrize("name", REPOSITORIES)
def test_on_the_hub(hub: HubServer, name: str) -> None:
    files = REPOSITORIES[name]
    hub.add(f"org/{name}", files)
    folder = fetch_repository(f"org/{name}")
    assert contents(folder) == files
    distinct = len(set(files.values()))
    assert hub.sent("/files/*") + hub.sent("*/resolve/*") == sum(map(len, set(files.values())))
    assert len({path.resolve() for path in folder.rglob("*") if path.is_file()}) == distinct
    hub.forget()
    assert fetch_repository(f"org/{name}") == folder
    assert not hub.asked_for("*/resolve/*")


@pytest.mark.parametrize("name", REPOSITORIES)
def test_on_s3(s3: S3Server, name: str, caplog: pytest.LogCaptureFixture) -> None:
    files = REPOSITORIES[name]
    s3.upload("engines", f"equal/{name}", files)
    caplog.set_level("INFO")
    assert contents(fetch_repository(f"s3://engines/equal/{name}")) == files
    requests = [line for line in caplog.messages if '"GET /engines/equal' in line]
    assert len(requests) <= len(set(files.values()))


def test_equal_contents_of_a_later_fetch(hub: HubServer) -> None:
    repository = hub.add("org/later", {"a.json": b"{}"})
    fetch_repository("org/later")
    hub.forget()
    repository.commit({"b.json": b"{}"})
    assert contents(fetch_repository("org/later")) == {"a.json": b"{}", "b.json": b"{}"}
    assert not hub.asked_for("*/resolve/*")


def test_a_damaged_one_is_fetched_again_for_all(hub: HubServer) -> None:
    hub.add("org/damaged", REPOSITORIES["small"])
    folder = fetch_repository("org/damaged")
    (folder / "chat_template.jinja").resolve().write_bytes(b"{{ ab }}")
    assert contents(fetch_repository("org/damaged")) == REPOSITORIES["small"]
