"""Leader, members and launch agents on loopback; only the ranks are missing."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import closing, suppress
from typing import Any

import pytest
from tests.support.truss_process import free_port
from tests.support.waiting import PATIENCE_S, settles

from trtllm_truss.errors import SettingsError, StartupError, TritonError
from trtllm_truss.hosts import launch_agent
from trtllm_truss.hosts.channel import Channel, ConnectionLost, connect
from trtllm_truss.hosts.leader import Leader
from trtllm_truss.hosts.member import Member
from trtllm_truss.processes.child import remove_folder
from trtllm_truss.processes.process_guard import remove_segments
from trtllm_truss.settings.loading import Group
from trtllm_truss.triton.server.command import Launch, new_launch

KEY = b"k" * 32
LOOPBACK = "127.0.0.1"
LINE = (
    'PRTE_PREFIX=/x;export PRTE_PREFIX;/x/bin/prted --prtemca ess "env" '
    '--prtemca ess_base_nspace "prterun-vm-1@0" --prtemca ess_base_vpid 1 '
    '--prtemca ess_base_num_procs "2" '
    f'--prtemca prte_hnp_uri "prterun-vm-1@0.0;tcp://{LOOPBACK}:37817:24"'
)
IDENTITY: dict[str, Any] = {
    **{"trtllm_truss": "1", "tensorrt_llm": "1.0.0", "mpi": "5", "hostname": "leader"},
    **{"settings": {"runtime": "a"}, "commit": "c", "described": {"config.json": "d"}},
    **{
        "files": {"rank0.engine": "5 e", "rank1.engine": "5 f"},
        "folders": {"the checkpoint": "/m"},
    },
}
OF_MEMBER = {**IDENTITY, "hostname": "member"}


class Run:
    """A member's part of a run, which the test ends."""

    def __init__(self, values: Mapping[str, str]) -> None:
        self.values = values
        self.status: int | None = None
        self.is_ready = False

    def stop(self) -> None:
        self.status = 143

    def ready(self) -> None:
        self.is_ready = True

    def poll(self) -> int | None:
        return self.status

    def end(self) -> None:
        self.stop()


class EndedMember(Member):
    """A member that ends as SIGTERM ends one, by an exception within its loop."""

    def __init__(self, *of: Any) -> None:
        super().__init__(*of)
        self.ended = threading.Event()

    def _join(self) -> None:
        self._end()
        super()._join()

    def _report_end(self, channel: Channel) -> None:
        self._end()
        super()._report_end(channel)

    def _end(self) -> None:
        if self.ended.is_set():
            raise SystemExit(143)


class Joined:
    """A member in a thread.

    Attributes:
        runs: what the leader has started.
        error: why the member has ended.
    """

    def __init__(self, group: Group, index: int = 1, **identity: object) -> None:
        self.runs: list[Run] = []
        self.error: BaseException | None = None
        seen = {**OF_MEMBER, **identity}
        self._member = EndedMember(group, index, KEY, seen, self._start_run)
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def failure(self) -> str:
        self._thread.join(PATIENCE_S)
        return str(self.error)

    def end(self) -> None:
        self._member.ended.set()
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()

    def _start_run(self, values: Mapping[str, str]) -> Run:
        self.runs.append(Run(values))
        return self.runs[-1]

    def _serve(self) -> None:
        try:
            self._member.serve()
        except StartupError as error:
            self.error = error
        except SystemExit:
            assert self._member.ended.is_set()


class Place:
    """A leader that listens, its members and its launch."""

    def __init__(self, size: int) -> None:
        self.group = Group(size, LOOPBACK, free_port())
        self.leader = Leader(self.group, KEY, LOOPBACK)
        self.losses: list[str] = []
        self.leader.on_loss = self.losses.append
        self.leader.open(IDENTITY)
        self.launch: Launch = new_launch()
        self.members: list[Joined] = []
        self.agents: list[subprocess.Popen[bytes]] = []

    def join(self, index: int = 1, **identity: object) -> Joined:
        self.members.append(Joined(self.group, index, **identity))
        return self.members[-1]

    def is_whole(self) -> bool:
        with suppress(TritonError):
            self.leader.wait_until_whole(lambda: False, 0)
            return True
        return False

    def agent(self, *words: str, host: str = LOOPBACK) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-I", "-S", launch_agent.__file__, host, *words]
        self.agents.append(subprocess.Popen(command, env={"TMPDIR": str(self.launch.folder)}))
        return self.agents[-1]

    def close(self) -> None:
        self.leader.close()
        for member in self.members:
            member.end()
        for agent in self.agents:
            agent.wait(PATIENCE_S)
        for file in self.launch.folder.iterdir():
            file.unlink()
        remove_folder(self.launch.folder)
        remove_segments(self.launch.shm_prefix)


@pytest.fixture
def place(request: pytest.FixtureRequest) -> Iterator[Place]:
    place = Place(getattr(request, "param", 2))
    yield place
    place.close()


def begun(place: Place) -> Joined:
    member = place.join()
    assert settles(place.is_whole)
    assert place.leader.begin(place.launch) == [LOOPBACK, LOOPBACK]
    return member


def test_an_agent_starts_a_run_and_returns_its_status(place: Place) -> None:
    member = begun(place)
    agent = place.agent(*LINE.split(" "))
    assert settles(lambda: bool(member.runs))
    assert member.runs[0].values["ess_base_nspace"] == "prterun-vm-1@0"
    assert not place.is_whole()
    place.leader.ready()
    assert settles(lambda: member.runs[0].is_ready)
    member.runs[0].status = 7
    assert agent.wait(PATIENCE_S) == 7
    assert settles(place.is_whole)
    assert not place.losses


def test_a_killed_agent_ends_its_run(place: Place) -> None:
    member = begun(place)
    agent = place.agent(*LINE.split(" "))
    assert settles(lambda: bool(member.runs))
    os.kill(agent.pid, signal.SIGKILL)
    agent.wait()
    assert settles(lambda: member.runs[0].status is not None)
    assert settles(place.is_whole)
    assert not place.losses


@pytest.mark.parametrize(
    ("line", "host"), [("/bin/reboot now", LOOPBACK), (LINE, "10.9.9.9"), (LINE + ";reboot", "")]
)
def test_an_agent_with_another_command_starts_nothing(place: Place, line: str, host: str) -> None:
    member = begun(place)
    assert place.agent(*line.split(" "), host=host).wait(PATIENCE_S) == 1
    assert settles(lambda: bool(place.losses))
    assert not member.runs


def test_a_lost_host_ends_the_run(place: Place) -> None:
    member = begun(place)
    agent = place.agent(*LINE.split(" "))
    assert settles(lambda: bool(member.runs))
    member.end()
    assert agent.wait(PATIENCE_S) == 1
    assert settles(lambda: bool(place.losses))
    assert place.losses == [place.leader.loss]
    assert "host 1 (127.0.0.1) was lost" in place.losses[0]
    assert member.runs[0].status == 143  # it cleaned up by itself


def test_a_launch_that_is_not_of_this_job_is_refused_by_the_member(place: Place) -> None:
    """The key alone does not make a member run anything."""
    member = begun(place)
    agent = place.agent(*LINE.replace("37817", "3781").split(" "))
    assert settles(lambda: bool(member.runs))
    member.runs[0].status = 0
    assert agent.wait(PATIENCE_S) == 0
    (connected,) = place.leader._members.values()
    values = {**member.runs[0].values, "program": "sh"}
    connected.channel.send({"type": "start", "launch": values})
    connected.channel.send({"type": "start", "launch": ["reboot"]})
    connected.channel.send({"type": "run", "command": "reboot"})
    assert settles(place.is_whole)
    assert len(member.runs) == 1


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"tensorrt_llm": "1.1.0"}, "TensorRT-LLM is '1.1.0' here and 1.0.0 on the leader"),
        ({"trtllm_truss": None}, "trtllm-truss is unknown here"),
        ({"mpi": "4"}, "Open MPI is '4'"),
        ({"hostname": "leader"}, "the hostname is leader, the leader's"),
        ({"hostname": None}, "the hostname is unknown here; it must be a text of at most 255"),
        ({"hostname": ["x"]}, "the hostname is ['x'] here"),
        ({"hostname": "x" * 50000}, "it must be a text of at most 255 characters"),
        ({"settings": {"runtime": "b"}}, "model_metadata.runtime is not the leader's"),
        ({"settings": {}}, "model_metadata.runtime is not the leader's"),
        ({"described": {}}, "config.json of the engine is not the leader's"),
        ({"commit": "d"}, "set engine_revision"),
        ({"folders": {"the checkpoint": "/o"}}, "is in '/o' here and in '/m' on the leader"),
        ({"folders": {}}, "the checkpoint is in unknown here"),
        ({"files": {"rank1.engine": "5 0"}}, "rank1.engine of the engine is not the leader's"),
    ],
)
def test_a_host_that_differs_is_refused(
    place: Place, change: dict[str, object], reason: str
) -> None:
    assert reason in place.join(**change).failure()
    with pytest.raises(TritonError, match="host 1 has not joined"):
        place.leader.wait_until_whole(lambda: False, 0)


def test_a_host_that_sends_anything_gets_an_answer(place: Place) -> None:
    """Each thread of the leader ends without an exception, which the session would report."""
    values: list[Any] = [None, 1, "x", [], {}, ["x"] * 99, {"x": {"y": None}}, "\ud800", 10**99]
    hellos: list[dict[str, Any]] = [{"index": value, "identity": OF_MEMBER} for value in values]
    hellos += [{"index": 1, "identity": value} for value in values]
    hellos += [
        {"index": 1, "identity": {**OF_MEMBER, name: value}}
        for name in IDENTITY
        for value in values
    ]
    hellos += [{"index": 1, "identity": {**OF_MEMBER, name: {}}} for name in IDENTITY]
    for hello in hellos:
        with closing(connect((LOOPBACK, place.group.port), KEY)) as channel:
            channel.send({"type": "hello", **hello})
            answer = channel.receive(PATIENCE_S)
            assert answer is not None
            if answer["type"] == "refused":
                assert answer["reason"].endswith(".")
        assert settles(lambda: not place.leader._members)


def test_a_stranger_gets_one_line_of_log(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    def knock(hello: bytes) -> None:
        with socket.create_connection((LOOPBACK, place.group.port)) as stranger:
            stranger.sendall(hello)
            with suppress(OSError):
                while stranger.recv(1 << 16):
                    continue

    for _ in range(50):  # two reasons in turns
        knock(b"GET / HTTP/1.1\r\n" + bytes(64))
        knock(b"trtllm-truss group 1\n" + bytes(32))
    knock(b"trtllm-truss group 2\n" + bytes(64))  # the member of another key
    lines = [line for line in caplog.messages if line.startswith("refused")]
    assert lines == [f"refused {LOOPBACK}: it does not speak this protocol."]
    with pytest.raises(TritonError, match=rf"{LOOPBACK}: its group_key is another one\."):
        place.leader.wait_until_whole(lambda: False, 0)


def test_an_index_outside_the_group_is_refused(place: Place) -> None:
    assert "the hosts 1 to 1 beside the leader" in place.join(5).failure()


@pytest.mark.parametrize("place", [3], indirect=True)
@pytest.mark.parametrize(
    ("index", "hostname", "reason"),
    [(1, "third", "connected already"), (2, "member", "the hostname is member, that of host 1")],
)
def test_a_place_that_is_taken_may_become_free(
    place: Place, index: int, hostname: str, reason: str
) -> None:
    """A host that restarts may come back before the leader has missed it."""
    first = place.join(1)
    assert settles(lambda: 1 in place.leader._members)
    second = place.join(index, hostname=hostname)
    assert settles(lambda: reason in second._member._said[0])
    first.end()
    assert settles(lambda: index in place.leader._members)
    assert second.error is None


def test_another_key_ends_a_new_member_and_is_named_on_the_leader(place: Place) -> None:
    member = Member(place.group, 1, b"other" * 8, OF_MEMBER, lambda _: None)  # type: ignore[arg-type, return-value]
    with pytest.raises(SettingsError, match="set the secret group_key to the same value"):
        member.serve()
    place.join()
    assert settles(place.is_whole)


def test_many_strangers_do_not_keep_a_member_out(place: Place) -> None:
    connections = []
    for _ in range(100):
        with suppress(OSError):
            connections.append(socket.create_connection((LOOPBACK, place.group.port)))
    place.join()
    assert settles(place.is_whole)
    for connection in connections:
        connection.close()


def test_a_port_that_is_taken_is_named(place: Place) -> None:
    with pytest.raises(SettingsError, match=r"serving\.nodes_port"):
        Leader(place.group, KEY, LOOPBACK).open(IDENTITY)


def test_a_closed_leader_is_waited_for(place: Place) -> None:
    member = begun(place)
    place.leader.close()
    with pytest.raises(ConnectionLost):
        connect((LOOPBACK, place.group.port), KEY)
    place.leader = Leader(place.group, KEY, LOOPBACK)
    place.leader.open(IDENTITY)
    assert settles(place.is_whole)
    assert member.error is None
