"""The process that `serve` and `demo` start."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
import yaml
from tests.support.paths import EXAMPLE, ROOT
from tests.support.serving import serving
from tests.support.truss_process import free_port

from trtllm_truss.errors import StartupError
from trtllm_truss.observability.status import ServiceStatus, StatusFile, StatusReader
from trtllm_workbench.cli.truss_server import TrussServer
from trtllm_workbench.scaffold.docker_server import own_server_section

INTERRUPTED = """
import signal, sys
from pathlib import Path
from trtllm_workbench.cli import truss_server
from trtllm_truss.cli.common import unwinding

truss, config, port, number = sys.argv[1:]
started = []

class Interrupted(truss_server.GuardedChild):
    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        started.append(self)
        signal.raise_signal(int(number))

truss_server.GuardedChild = Interrupted
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it
try:
    with unwinding(), truss_server.TrussServer(Path(truss), Path(config), int(port), print):
        print("the signal was lost")
except (SystemExit, KeyboardInterrupt) as error:
    print(type(error).__name__, "alive" if started[0].status is None else "ended")
"""
"""Run in a separate process, because a worker's signal stack may be gone.

OpenVINO sets one on a CPU with AVX-512 and unmaps it in the thread that drops the model.
"""


@pytest.mark.parametrize(
    ("number", "raised"), [(signal.SIGTERM, "SystemExit"), (signal.SIGINT, "KeyboardInterrupt")]
)
def test_a_signal_while_the_process_starts_ends_it(
    number: int, raised: str, tmp_path: Path
) -> None:
    script = [sys.executable, "-c", INTERRUPTED]
    done = subprocess.run(
        [*script, str(ROOT), str(EXAMPLE), str(free_port()), str(int(number))],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.stdout == f"{raised} ended\n", done.stderr
    assert not list(tmp_path.iterdir())


DROPPED = """
import signal, weakref
from trtllm_workbench.cli.serve import _Stopping

stopping, module = _Stopping(0), type("Module", (), {})()
reference = weakref.ref(module, lambda _: signal.raise_signal(signal.SIGTERM))
del module
print("dropped", flush=True)
stopping.watch(None, None)
print("the signal was lost")
"""


def test_a_signal_whose_exception_python_drops_ends_serve() -> None:
    command = [sys.executable, "-c", DROPPED]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert "Exception ignored in" in done.stderr
    assert (done.stdout, done.returncode) == ("dropped\n", 0)


@pytest.mark.filterwarnings("ignore")  # of what Truss imports
@pytest.mark.parametrize("folder", ["model", "data"])
def test_a_truss_that_cannot_be_copied(tmp_path: Path, folder: str) -> None:
    """A link that leads nowhere; like a folder without rights, which root reads all the same."""
    for name in ("model", "data"):
        (tmp_path / name).mkdir()
    (tmp_path / "model/model.py").write_text("")
    config = {
        "model_name": "a",
        "python_version": "py311",
        "docker_server": own_server_section(None),
    }
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(config))
    (tmp_path / folder / "broken").symlink_to("nowhere")
    with pytest.raises(StartupError) as caught, TrussServer(tmp_path, None, free_port(), print):
        raise AssertionError("it started")
    assert caught.value.message.startswith(f"{tmp_path} cannot be copied to ")
    assert f"{folder}/broken" in caught.value.message


def test_a_server_that_reports_its_start_is_not_asked_meanwhile(tmp_path: Path) -> None:
    asked = []

    class Answers(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_response(200)
            self.end_headers()

        def log_message(self, format: str, *arguments: object) -> None: ...

    listening = HTTPServer(("127.0.0.1", 0), Answers)
    with serving(listening):
        server = TrussServer(ROOT, None, listening.server_port, print)
        assert server._is_ready()  # it does not report a status
        server._status = StatusReader(tmp_path / "status")
        reported = ServiceStatus(StatusFile(tmp_path / "status").write)
        reported.starting()
        assert not server._is_ready()
        assert len(asked) == 1
        reported.ready()
        assert server._is_ready()
        assert len(asked) == 2
        server._status.close()
