"""Starts that signals end at random moments leave nothing, as the main process of a container.

A round ends a start of each server with each kind of engine by SIGTERM, by SIGINT, and by SIGKILL
of the server and its guards in one instant, after which the next start removes the rest. `make
engines` runs ten rounds, 180 starts; without `--rounds` a random one of the three has to do.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import yaml
from tests.fakes.tensorrt_llm import (
    COUNTING,
    config_for_checkpoint,
    fake_library,
    write_checkpoint,
)
from tests.fakes.triton import FAKE_ENGINE, config_for, write_engine
from tests.support.paths import ROOT
from tests.support.smollm2 import smollm2_file
from tests.support.truss_process import free_port, write_greedy_example
from tests.support.waiting import PATIENCE_S, settles
from tests.support.warm_python import WarmProcess

from trtllm_truss import local_requests
from trtllm_truss.processes.process_guard import descendants, name_of
from trtllm_workbench.cli import local_main
from trtllm_workbench.cli.layout import lay_out

KINDS = ("cpu", "compiled", "checkpoint")
GUARDS = ("truss-guard", "truss-folders")
POINTS = ("", "[1/4]", "[2/4]", "[3/4]", "[4/4]", "[3/4] tokenizer: ")
"""Lines of the log after which a start is ended, within the time to the next one or so."""

LONGEST_PAUSE_S = 0.7
AT_ONCE = "SIGKILL of server and guards"
SIGNALS = (signal.SIGTERM, signal.SIGINT, AT_ONCE)


class Start:
    """A server that is starting.

    Args:
        folder: the laid-out Truss.
        variables: of the engine's stand-in.
        temporary: the folder for temporary files.
    """

    def __init__(
        self, folder: Path, variables: dict[str, str], temporary: Path, *, is_own: bool
    ) -> None:
        port = free_port()
        self.temporary = temporary
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115 - `end` closes it
        command = (
            [
                *("trtllm_truss.cli.main", "serve", "--truss", str(folder / "app")),
                *("--port", str(port)),
            ]
            if is_own
            else [local_main.__file__, "127.0.0.1", "main.py", __file__, local_requests.__file__]
        )
        self.process = WarmProcess(
            command,
            stderr=self._log.fileno(),
            stdout=self._log.fileno(),
            cwd=folder / "app",
            env={
                **os.environ,
                **variables,
                "TMPDIR": str(temporary),
                "INFERENCE_SERVER_PORT": str(port),
                "PYTHONPATH": str(folder / "packages"),
                "PYTHONUNBUFFERED": "1",
                "NUM_LOAD_RETRIES_TRUSS": "0",
            },
        )

    @property
    def log(self) -> str:
        self._log.seek(0)
        return self._log.read()

    def wait_for(self, text: str) -> None:
        assert settles(lambda: text in self.log or self.process.poll() is not None), self.log
        assert self.process.poll() is None, self.log

    def end(self, by: signal.Signals | str) -> None:
        if isinstance(by, signal.Signals):
            self.process.send_signal(by)
        else:
            guards = [pid for pid in descendants(self.process.pid) if name_of(pid) in GUARDS]
            for pid in (self.process.pid, *guards):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        try:
            self.process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{by}: still there after {PATIENCE_S:g} s: {self.log}") from None

    def close(self) -> None:
        self._log.close()

    def left(self) -> list[str]:
        """Return what is there of this start: processes, files and segments."""
        return [
            *(f"process {pid} {command}" for pid, command in _processes_with(self.temporary)),
            *(
                f"{place}/{name}"  # `rglob` fails for a folder that goes meanwhile
                for place, folders, files in os.walk(self.temporary)
                for name in (*folders, *files)
            ),
            *map(str, Path("/dev/shm").glob(f"trtllm_truss_{self.process.pid}_*")),
        ]


def _processes_with(temporary: Path) -> Iterator[tuple[int, str]]:
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if f"TMPDIR={temporary}".encode() in (process / "environ").read_bytes():
                yield int(process.name), (process / "cmdline").read_bytes().decode()


@pytest.fixture(
    scope="module",
    params=[
        # In every run: test_early_signals.py ends starts of the CPU example.
        pytest.param(kind, marks=[pytest.mark.thorough] if kind == "cpu" else [])
        for kind in KINDS
    ],
)
def truss(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, dict[str, str]]:
    """A Truss of each kind of engine, laid out as in its image, and the variables of a stand-in."""
    made = tmp_path_factory.mktemp(request.param)
    variables: dict[str, str] = {}
    if request.param == "cpu":
        config = write_greedy_example(made)
    elif request.param == "compiled":
        config, variables = config_for(write_engine(made / "engine")), dict(FAKE_ENGINE)
    else:
        folder = write_checkpoint(made / "model", smollm2_file())
        config, variables = config_for_checkpoint(folder), {**fake_library("1.2.1"), **COUNTING}
    content = yaml.safe_load(config.read_text())
    content.setdefault("external_package_dirs", []).append(str(ROOT / "packages"))
    config.write_text(yaml.safe_dump(content))
    root = made / "root"
    root.mkdir()
    lay_out(ROOT, config, root)
    return root, variables


@pytest.mark.filterwarnings("ignore")  # of what Truss imports
@pytest.mark.parametrize(
    "is_own",
    [pytest.param(True, id="own", marks=pytest.mark.thorough), pytest.param(False, id="truss")],
)
def test_an_ended_start_leaves_nothing(
    truss: tuple[Path, dict[str, str]], is_own: bool, pytestconfig: pytest.Config
) -> None:
    seed = random.randrange(1 << 32)
    chance = random.Random(seed)
    rounds = pytestconfig.getoption("--rounds")
    for _ in range(rounds):
        for by in SIGNALS if rounds > 1 else [chance.choice(SIGNALS)]:
            temporary = Path(tempfile.mkdtemp())
            point, pause_s = chance.choice(POINTS), chance.uniform(0, LONGEST_PAUSE_S)
            told = f"{by} {pause_s:.3f} s after {point!r} (seed {seed})"
            start = Start(*truss, temporary, is_own=is_own)
            try:
                start.wait_for(point)
                time.sleep(pause_s)
                start.end(by)
                if by == AT_ONCE:
                    again = Start(*truss, temporary, is_own=is_own)
                    again.wait_for("[1/4]")
                    again.end(signal.SIGTERM)
                    again.close()
                assert settles(lambda start=start: not start.left()), (told, start.left())
                if is_own:  # Truss's server logs its own KeyboardInterrupt
                    assert "Traceback" not in start.log, (told, start.log)
            finally:
                if start.process.poll() is None:
                    start.process.kill()
                    start.process.wait()
                start.close()
            temporary.rmdir()
