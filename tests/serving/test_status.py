"""The status of a service, and the file by which another process reads it."""

from __future__ import annotations

import json
import logging
import os
import shutil
import stat
from pathlib import Path
from zlib import crc32

import pytest

from trtllm_truss.observability.status import (
    STATUS_VARIABLE,
    Change,
    Phase,
    ServiceStatus,
    State,
    Status,
    StatusFile,
    StatusReader,
)


def published(path: Path) -> ServiceStatus:
    return ServiceStatus.published({STATUS_VARIABLE: str(path)})


def test_a_life_from_start_to_failure(tmp_path: Path) -> None:
    reader = StatusReader(tmp_path / "status")
    status = published(tmp_path / "status")
    assert reader.read() is None
    status.starting()
    status.phase(Phase(2, 2, "triton"))
    status.phase(Phase(1, 2, "engine", "cpu", 0.25))
    status.phase(Phase(2, 2, "triton", "ready", 1.5))
    assert reader.read() == status.current
    assert [phase.name for phase in status.current.phases] == ["engine", "triton"]
    status.ready()
    for restart in range(1, 4):
        status.engine_exited("it was killed.")
        assert (status.current.state, status.current.reason) == (
            State.RESTARTING,
            "it was killed.",
        )
        status.restart(restart, 5)
        status.restart_failed("no memory.")
        status.restarted()
    told = reader.read()
    assert told is not None
    assert told == status.current
    assert (told.state, told.reason, told.restarts) == (State.READY, "", 3)
    assert [each.change for each in told.events] == [
        *(Change.RESTART_FAILED, Change.RESTARTED),
        *(Change.EXITED, Change.RESTART, Change.RESTART_FAILED, Change.RESTARTED),
    ]
    status.failed("giving up.")
    reader.close()
    last = reader.read()
    assert last is not None
    assert (last.state, last.reason) == (State.FAILED, "giving up.")


def test_a_status_follows_the_process_that_it_started(tmp_path: Path) -> None:
    server, serve = ServiceStatus.published({}), published(tmp_path / "status")
    server.phase(Phase(1, 1, "engine", "cpu", 1.0))
    server.ready()
    serve.follow(server.current)
    assert (serve.current.state, serve.current.phases) == (State.STARTING, server.current.phases)
    serve.ready()
    for change in (lambda: server.engine_exited("killed."), server.restarted):
        change()
        serve.follow(server.current)
        assert serve.current == server.current
    serve.failed("port 8080 is lost.")
    serve.follow(server.current)
    assert (serve.current.state, serve.current.reason) == (State.FAILED, "port 8080 is lost.")


def test_what_has_not_changed_is_neither_written_nor_parsed_again(tmp_path: Path) -> None:
    """`serve` follows the server's status with each line of its log."""
    written: list[Status] = []
    serve = ServiceStatus(written.append)
    reader = StatusReader(tmp_path / "status")
    server = published(tmp_path / "status")
    server.ready()
    first = reader.read()
    assert first is not None
    for _ in range(3):
        told = reader.read()
        assert told is first
        serve.follow(told)
    assert written == []  # neither's state counts before both are ready
    server.engine_exited("killed.")
    for _ in range(3):
        told = reader.read()
        assert told is not None
        serve.follow(told)
    assert len(written) == 1
    reader.close()


def test_a_new_start_keeps_the_number_of_restarts() -> None:
    status = ServiceStatus.published({})
    status.phase(Phase(1, 1, "engine", "cpu", 1.0))
    status.restart(1, 5)
    status.failed("no memory.")
    status.starting()
    assert (status.current.state, status.current.reason) == (State.STARTING, "")
    assert (status.current.restarts, status.current.phases) == (1, ())


def test_the_file_is_private_and_outlives_its_folder(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    previous = os.umask(0)
    try:
        reader = StatusReader(folder / "status")
        StatusFile(folder / "other").write(ServiceStatus().current)
    finally:
        os.umask(previous)
    assert {stat.S_IMODE(file.stat().st_mode) for file in folder.iterdir()} == {0o600}
    published(folder / "status").failed("no memory.")
    shutil.rmtree(folder)  # as the process guard does when the server has exited
    told = reader.read()
    assert told is not None
    assert told.reason == "no memory."
    reader.close()


def test_what_is_read_in_the_middle_of_a_write_is_ignored(tmp_path: Path) -> None:
    file = tmp_path / "status"
    reader = StatusReader(file)
    status = published(file)
    status.failed("x" * 9000)
    long = reader.read()
    assert long == status.current
    whole = file.read_bytes()
    status.failed("y" * 9000)
    torn = file.read_bytes()[:4096] + whole[4096:]
    for content in (torn, b"", b"garbage", b"zz {}\n", b"%08x {}\n" % crc32(b"{}")):
        file.write_bytes(content)
        assert reader.read() == long
    status.ready()  # shorter than the overwritten text
    assert reader.read() == status.current
    reader.close()


def test_the_status_of_another_version(tmp_path: Path) -> None:
    reader = StatusReader(tmp_path / "status")
    phase = {"number": 1, "count": 1, "name": "engine", "gpus": 8}
    told = {"state": "ready", "reason": "", "restarts": 0, "phases": [phase], "events": [], "up": 1}
    for extra, known in ({}, True), ({"state": "asleep"}, False), ({"phases": [{}]}, False):
        content = json.dumps({**told, **extra}).encode()
        (tmp_path / "status").write_bytes(b"%08x %s\n" % (crc32(content), content))
        status = reader.read()
        assert status is not None
        assert status.phases == (Phase(1, 1, "engine"),), (extra, known)
    reader.close()


def test_a_reader_starts_with_a_new_file(tmp_path: Path) -> None:
    published(tmp_path / "status").ready()
    with pytest.raises(FileExistsError):
        StatusReader(tmp_path / "status")


def test_the_service_works_without_the_file(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    for path in (tmp_path / "none" / "status", tmp_path, tmp_path / "link"):
        status = published(path)
        with caplog.at_level(logging.WARNING):
            status.ready()
        assert status.current.state is State.READY
        assert f"cannot write the status to {path}" in caplog.messages[-1]
    assert not (tmp_path / "elsewhere").exists()
