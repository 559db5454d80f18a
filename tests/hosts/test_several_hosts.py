"""An engine over several hosts: right answers, visible failures, and a restart of the whole."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.support.fake_tensorrtllm import config_for, write_engine
from tests.support.hosts import KEY, Group, Host, Network, group_of, missing_right
from tests.support.waiting import PATIENCE_S, settles

STREAMS = 4
STRANGE = (
    b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    b"trtllm-truss group 1\n" + bytes(32),
    b"trtllm-truss group 1\n" + bytes(64) + b'{"type": "start"}',
    bytes(range(256)) * 400,
)
"""A stranger's messages: another protocol, half a handshake, a wrong proof, noise."""


class Streams:
    """Long streams from the leader, all with a first piece; `endings` waits for them."""

    def __init__(self, group: Group, max_tokens: int = 1900) -> None:
        self._started: list[int] = []
        self._tasks = [
            group.leader.submit(group.stream, lambda: self._started.append(1), max_tokens)
            for _ in range(STREAMS)
        ]
        assert settles(lambda: len(self._started) == STREAMS)

    def endings(self) -> set[str]:
        return {task.result(PATIENCE_S) for task in self._tasks}


def kill_all(host: Host) -> None:
    """Kill all processes of a host at once, as a power cut does."""
    for number in (signal.SIGSTOP, signal.SIGKILL):
        for pid in host.processes():
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                continue


class Harm:
    """One kind of harm: done to a running group, then undone."""

    def __init__(
        self, do: Callable[[Group, Host], object], undo: Callable[[Group, Host], object]
    ) -> None:
        self.do = do
        self.undo = undo


def lose(group: Group, host: Host) -> None:
    host.cut()
    kill_all(host)


def bring_back(group: Group, host: Host) -> None:
    group.commands[host].wait()
    host.restore()
    group.join(host)


def kill_join(group: Group, host: Host) -> None:
    group.commands[host].process.kill()
    group.commands[host].wait()
    assert settles(lambda: not host.processes()), host.processes()


def kill_rank(group: Group, host: Host) -> None:
    os.kill(host.ranks()[0], signal.SIGKILL)


def freeze(group: Group, host: Host) -> None:
    for pid in host.processes():
        os.kill(pid, signal.SIGSTOP)


def thaw(group: Group, host: Host) -> None:
    for pid in host.processes():
        os.kill(pid, signal.SIGCONT)


def kill_leader(group: Group, host: Host) -> None:
    kill_all(group.leader)


def serve_again(group: Group, host: Host) -> None:
    """Check that the hosts clean up by themselves before they have a leader again."""
    group.commands[group.leader].wait()
    assert settles(lambda: not any(each.jobs() for each in group.others)), group.logs()
    assert group.serve().becomes_ready(), group.logs()


def nothing(group: Group, host: Host) -> None:
    """Wait for the group itself."""


HARMS = {
    "host gone": Harm(lose, bring_back),
    "link cut": Harm(lambda _, host: host.cut(), lambda _, host: host.restore()),
    "host hung": Harm(freeze, thaw),
    "join killed": Harm(kill_join, lambda group, host: group.join(host)),
    "rank killed": Harm(kill_rank, nothing),
    "leader killed": Harm(kill_leader, serve_again),
}
IN_EVERY_RUN = ("link cut", "join killed")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "harm" in metafunc.fixturenames:
        all_of_them = metafunc.config.getoption("--hosts")
        metafunc.parametrize("harm", list(HARMS) if all_of_them else IN_EVERY_RUN)


def test_the_ranks_are_spread_and_answer_right(group: Group) -> None:
    assert group.answers_right()
    assert [len(host.ranks()) for host in group.network.hosts] == [group.ranks] * group.size


def test_the_key_is_in_no_place_that_others_read(group: Group) -> None:
    """Only the two commands and Truss's server, which read it, have it in their environment."""
    for host in group.network.hosts:
        for pid, line in host.processes().items():
            assert KEY not in line
            environment = Path(f"/proc/{pid}/environ").read_bytes()
            assert KEY.encode() not in environment or group.reads_secrets(pid, line), line
    for command in group.commands.values():
        assert KEY not in command.log


def strange_listeners(group: Group) -> list[str]:
    """Return sockets on the hosts' addresses that are neither a rank's nor the channel's."""
    lines = [line for host in group.network.hosts for line in host.sockets("-l")]
    return [
        line
        for line in lines
        if "127.0.0.1" not in line.split()[3]
        and line.split()[3] != f"{group.leader.address}:8470"
        and not re.search(r'"(triton_python_b|tritonserver)"', line)
    ]


def test_only_the_group_listens_on_its_addresses(group: Group) -> None:
    """MPI's launcher and daemons close their ports once ready; ranks keep those of MPI."""
    assert settles(lambda: not strange_listeners(group)), strange_listeners(group)


def test_a_stranger_starts_nothing_and_stops_nothing(group: Group) -> None:
    """Speak to every port of every host from another one, while streams run."""
    stranger = group.others[-1]
    before = [host.processes() for host in group.network.hosts]
    streams = Streams(group, 300)
    places = [
        (host.address, int(line.split()[3].rpartition(":")[2]))
        for host in group.network.hosts
        for line in host.sockets("-l")
    ]
    assert (group.leader.address, 8470) in places
    with contextlib.ExitStack() as idle:
        for place in places:
            for text in (*STRANGE, *[b""] * 40):
                for connection in stranger.call(open_connection, place):
                    idle.enter_context(connection)
                    with contextlib.suppress(OSError):
                        connection.sendall(text)
        assert group.answers_right()
    assert streams.endings() == {"whole"}
    assert [host.processes() for host in group.network.hosts] == before
    assert "joined" in group.commands[group.leader].log
    assert "was lost" not in group.commands[group.leader].log


def open_connection(place: tuple[str, int]) -> list[socket.socket]:
    with contextlib.suppress(OSError):
        return [socket.create_connection(place, 2)]
    return []


def test_harm_to_a_host_ends_streams_and_restarts_the_job(
    group: Group, rounds: int, harm: str, report_round: Callable[[dict[str, float]], None]
) -> None:
    for number in range(rounds):
        host = group.others[number % len(group.others)]
        streams = Streams(group)
        old = {pid: line for each in group.network.hosts for pid, line in each.jobs().items()}
        begin_s = time.monotonic()
        HARMS[harm].do(group, host)
        assert settles(lambda: not group.is_healthy())
        unhealthy_s = time.monotonic() - begin_s
        assert streams.endings() <= {"cut", "503"}
        back_s = time.monotonic()
        HARMS[harm].undo(group, host)
        assert settles(group.is_healthy), group.logs()
        times = {"unhealthy_s": unhealthy_s, "whole_again_s": time.monotonic() - back_s}
        report_round(times)
        assert group.answers_right()
        new = {pid for each in group.network.hosts for pid in each.jobs()}
        assert not {pid: line for pid, line in old.items() if pid in new}


def test_a_host_that_differs_is_refused_with_the_reason(
    group: Group, rounds: int, tmp_path: Path
) -> None:
    """The rest of the group waits for it, and goes on with the right one."""
    other = write_engine(
        tmp_path / "engine", tp=group.size * group.ranks, limits={"max_batch_size": 3}
    )
    host = group.others[-1]
    wrong = {
        "config.json of the engine is not the leader's": {
            "config": group.config_with("other.yaml", engine_repository=str(other))
        },
        "model_metadata.serving is not the leader's": {
            "config": group.config_with("limit.yaml", serving={"queue_limit": 3})
        },
        "set the secret group_key to the same value on every host": {"key": KEY[::-1]},
    }
    assert group.commands[host].end() == 0
    assert not host.processes()
    assert settles(lambda: not group.is_healthy())
    for _ in range(rounds):
        for reason, change in wrong.items():
            joining = group.join(host, **change)
            assert joining.wait() in (1, 2)
            assert reason in joining.log
            assert not host.processes()
    assert not group.is_healthy()
    group.join(host)
    assert settles(group.is_healthy), group.logs()
    assert group.answers_right()


def test_each_host_needs_the_files_of_its_pipeline_stage_only(tmp_path: Path) -> None:
    """The leader runs the last stage."""
    if reason := missing_right():
        pytest.skip(reason)
    engine, other = (write_engine(tmp_path / name, pp=2) for name in ("leader", "other"))
    (engine / "rank0.engine").unlink()
    (other / "rank1.engine").unlink()
    with Network(2) as network:
        config = config_for(engine, pipeline_parallelism=2, nodes=network.addresses)
        with group_of(network, config, 2) as stages:
            theirs = stages.config_with("other.yaml", engine_repository=str(other))
            stages.join(stages.others[0], config=theirs)
            assert stages.serve().becomes_ready(), stages.logs()
            assert stages.answers_right()
