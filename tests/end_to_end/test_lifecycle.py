"""Starts, exits and kills leave nothing behind, and the log has their cause."""

from __future__ import annotations

import contextlib
import json
import os
import re
import resource
import signal
import socket
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
import yaml
from tests.fakes.triton import FAKE_ENGINE, config_for, write_engine
from tests.support.model_module import model_module
from tests.support.paths import EXAMPLE, ROOT
from tests.support.truss_process import LOOPBACK, Served, alive, free_port, listening_addresses
from tests.support.waiting import settles
from tests.support.warm_python import run_warm
from tokenizers import Tokenizer, models

from trtllm_truss.errors import StartupError


def test_triton_listens_on_loopback_only(server: Served) -> None:
    (triton,) = [pid for pid, name in server.processes().items() if name == "tritonserver"]
    listening = listening_addresses(triton)
    assert len(listening) == 2  # gRPC, metrics
    assert {address for address, _ in listening} <= LOOPBACK


def test_no_secret_stays_with_the_server_or_reaches_triton(server: Served) -> None:
    # On a developer's machine `serve` and the guard between pass on what they were given.
    names = {pid: name for pid, name in server.processes().items() if name != "truss-guard"}
    assert sum(name.startswith("triton") for name in names.values()) >= 2  # and Python backends
    assert len(names) >= 3
    for pid, name in names.items():
        environment = Path(f"/proc/{pid}/environ").read_bytes()
        assert b"s3cr3t" not in environment, name
        assert b"PATH=" in environment
    assert b"s3cr3t" in Path(f"/proc/{server.process.pid}/environ").read_bytes()
    assert "s3cr3t" not in server.log


def test_the_address_for_openai_clients_is_printed(server: Served) -> None:
    (line,) = [line for line in server.lines if line.startswith("ready: ")]
    address = re.search(r"OpenAI (\S+/v1),", line)[1]
    assert httpx.get(f"{address}/models", timeout=60).json()["object"] == "list"


@pytest.mark.engines("cpu")
def test_weights_are_in_huge_pages(server: Served) -> None:
    modes = Path("/sys/kernel/mm/transparent_hugepage/enabled")
    if not modes.exists() or "[never]" in modes.read_text():
        pytest.skip("this kernel offers no huge pages")
    (engine,) = [pid for pid, name in server.processes().items() if name.startswith("triton_py")]
    memory = Path(f"/proc/{engine}/smaps_rollup").read_text()
    assert int(re.search(r"AnonHugePages: +(\d+)", memory)[1]) > 100_000  # KiB


def test_sigterm_lets_a_running_stream_finish(own_server: Served) -> None:
    body = {"prompt": "Once", "max_tokens": 200, "ignore_eos": True}
    pids = own_server.processes()
    with httpx.stream("POST", own_server.url, json=body, timeout=60) as answer:
        chunks = answer.iter_text()
        text = next(chunks)
        own_server.process.send_signal(signal.SIGTERM)
        text += "".join(chunks)  # httpx raises if the stream is cut
    assert len(text) > 200
    assert own_server.wait() == 0
    assert not alive(pids)


def test_sigint_ends_with_status_0_and_leaves_nothing(own_server: Served) -> None:
    assert own_server.leftovers()
    pids = own_server.processes()
    assert len(pids) >= 4  # two guards, Truss's server, Triton, its Python stub
    assert own_server.end(signal.SIGINT) == 0
    assert not alive(pids)
    assert not own_server.leftovers()


def test_idle_connections_do_not_block_clients(tmp_path: Path) -> None:
    """Shells allow few open files, and every connection is one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (128, hard))
    config = config_for(write_engine(tmp_path / "engine"))
    served = Served(config, FAKE_ENGINE, python=sys.executable)  # inherits the limit
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    try:
        served.wait_until_ready()
        with contextlib.ExitStack() as idle:
            for _ in range(300):
                connection = socket.create_connection(("127.0.0.1", served.port), timeout=60)
                idle.enter_context(connection)
            assert served.post({"prompt": "Hi", "max_tokens": 2}).status_code == 200
        for pid, name in served.processes().items():
            if name == "tritonserver":
                limit, _ = resource.prlimit(pid, resource.RLIMIT_NOFILE)
                assert limit == min(hard, 65_536)
    finally:
        assert served.end() == 0


@pytest.mark.parametrize(
    "victim",
    [
        *("trtllm-truss serve", "truss server"),
        # In every run: test_supervision.py kills it under load.
        pytest.param("guard of triton", marks=pytest.mark.thorough),
    ],
)
def test_kill_9_leaves_nothing(own_server: Served, tmp_path: Path, victim: str) -> None:
    write_engine(tmp_path / "engine", load_after=tmp_path / "never")  # a loss can be seen
    pids = own_server.processes()
    commands = {pid: Path(f"/proc/{pid}/cmdline").read_bytes() for pid in pids}
    targets = {
        "trtllm-truss serve": [own_server.process.pid],
        "truss server": [pid for pid, line in commands.items() if b"\0main.py\0" in line
                         and b"process_guard.py" not in line],
        "guard of triton": [pid for pid, line in commands.items() if b"process_guard.py" in line
                             and b"tritonserver" in line],
    }[victim]  # fmt: skip
    (target,) = targets
    subprocess.run(["kill", "-9", str(target)], check=True)
    if victim == "guard of triton":  # the server reports the loss and can still be ended
        assert settles(lambda: not own_server.is_healthy())
        assert own_server.post({"prompt": "Hi"}).status_code == 503
        assert own_server.end() == 0
    pids[own_server.process.pid] = "serve"
    assert settles(lambda: not alive(pids)), alive(pids)
    assert settles(lambda: not own_server.leftovers()), own_server.leftovers()
    own_server.wait()


def failing_start(tmp_path: Path, temporary: Path, **metadata: object) -> tuple[int, str]:
    config = yaml.safe_load(EXAMPLE.read_text())
    config["model_metadata"] |= metadata
    config.pop("external_package_dirs")
    file = tmp_path / "config.yaml"
    file.write_text(yaml.safe_dump(config))
    result = run_warm(
        *("trtllm_truss", "serve", "--truss", str(ROOT)),
        *("--config", str(file), "--port", str(free_port())),
        env={**os.environ, "TMPDIR": str(temporary)},
    )
    return result.returncode, result.stderr.rstrip().splitlines()[-1]


@pytest.mark.thorough  # in every run: test_load_logs_its_cause, and a start of a compiled engine
@pytest.mark.parametrize(
    ("metadata", "parts"),
    [
        ({"tensor_parallelism": 2}, ["tensor_parallelism is 2", "built for 1"]),
        ({"engin_repository": "a/b"}, ["engin_repository", "did you mean engine_repository?"]),
    ],
)
def test_a_failed_start_ends_with_its_cause(
    tmp_path: Path, temporary: Path, metadata: dict[str, object], parts: list[str]
) -> None:
    status, last_line = failing_start(tmp_path, temporary, **metadata)
    assert status != 0
    assert last_line.startswith("error: ")
    for part in parts:
        assert part in last_line


@pytest.mark.parametrize(
    ("metadata", "parts"),
    [
        ({"engine_repository": "/nowhere"}, ["engine_repository", "/nowhere", "does not exist"]),
        ({"engine_repository": "package://nope"}, ["nope", "pip install"]),
        ({"runtime": {"max_beam_with": 2}}, ["max_beam_with", "max_beam_width"]),
        ({"generation": {"top_p": 3}}, ["generation", "top_p", "at most 1"]),
    ],
)
def test_load_logs_its_cause(
    caplog: pytest.LogCaptureFixture, metadata: dict[str, object], parts: list[str]
) -> None:
    config = yaml.safe_load(EXAMPLE.read_text())
    config["model_metadata"] |= metadata
    with pytest.raises(StartupError):
        model_module().Model(config=config, secrets={}, data_dir=ROOT / "data").load()
    assert caplog.messages[-1].startswith("cannot start: ")
    for part in parts:
        assert part in caplog.messages[-1]


def test_a_tokenizer_that_panics_ends_the_start(tmp_path: Path, temporary: Path) -> None:
    """Truss would wait forever: a panic is a BaseException."""
    parts = json.loads(Tokenizer(models.WordLevel({"a": 0}, unk_token="a")).to_str())
    parts["normalizer"] = {"type": "Precompiled", "precompiled_charsmap": "AAAA"}
    folder = tmp_path / "tokenizer"
    folder.mkdir()
    (folder / "tokenizer.json").write_text(json.dumps(parts))
    status, last_line = failing_start(tmp_path, temporary, tokenizer_repository=str(folder))
    assert status != 0
    assert re.fullmatch(r"error: the tokenizer in \S+ cannot be used \(.*panicked.*", last_line)


def test_an_unhandled_exception_is_logged_last(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Panic(BaseException):
        pass

    def panic(_: object) -> None:
        raise Panic("at the disco")

    monkeypatch.setattr("trtllm_truss.endpoints.application.load_configuration", panic)
    with pytest.raises(StartupError):
        model_module().Model(config={}, secrets={}, data_dir=ROOT / "data").load()
    assert caplog.messages[-1] == (
        "cannot start: unhandled Panic: at the disco; the log above has the traceback."
    )


def test_a_taken_port_is_named(server: Served) -> None:
    serve = ["serve", "--truss", str(ROOT), "--config", str(EXAMPLE)]
    result = run_warm("trtllm_truss", *serve, "--port", str(server.port))
    assert result.returncode == 2
    assert f"port {server.port} is in use" in result.stderr
    assert re.search(r"--port", result.stderr)


def test_a_port_taken_meanwhile_is_named() -> None:
    """Truss's server ends while a thread still imports the model."""
    program = (
        "import sys; from trtllm_workbench.cli import main, truss_server;"
        "truss_server._require_free = lambda host, port: None;"
        "sys.exit(main.main(sys.argv[1:]))"
    )
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", free_port()))
        serve = ["serve", "--truss", str(ROOT), "--config", str(EXAMPLE)]
        result = subprocess.run(
            [sys.executable, "-c", program, *serve, "--port", str(taken.getsockname()[1])],
            capture_output=True,
            text=True,
            timeout=240,
        )
    assert result.returncode == 1
    assert "address already in use" in result.stderr.rstrip().splitlines()[-1]
