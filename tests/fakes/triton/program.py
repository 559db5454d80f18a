"""A fake Triton.

Usage: `program.py RUN_ID GRPC_PORT METRICS_PORT SHM_PREFIX MODE…`

Modes, any number of them:
    slow         half a second until ready
    never_ready  answers, but is never ready
    stranger     is ready under another name
    crash        ends with status 3 before it listens
    port_taken   reports a taken port and ends, once: creates the file `port_taken`
    port_lost    reports a taken port and continues, as a ready server may
    stubborn     ignores SIGTERM
    chatty       prints 20,000 long lines before it is ready
    family       starts a child with a child; both ignore SIGTERM, in a new session
    memory       makes two shared-memory segments and a folder like Triton's Python backend
    files        prints its open file descriptors
"""

import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

run_id, grpc_port, metrics_port, shm_prefix, *modes = sys.argv[1:]
ready_at = time.monotonic() + (0.5 if "slow" in modes else 0)
DESCENDANT = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
CHILD = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {DESCENDANT!r}])"


def echo(line):
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if "stubborn" in modes:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
if "crash" in modes:
    echo('E1121 08:45:15.576576 7594 model_lifecycle.cc:654] "failed to load: no engine"')
    echo("bye")
    sys.exit(3)
if "port_taken" in modes and not Path("port_taken").exists():
    Path("port_taken").touch()
    echo("error: failed to start HTTP service: Unavailable - Socket already in use")
    sys.exit(1)
if "port_lost" in modes:
    echo("Address already in use")
if "memory" in modes:
    for i in range(2):
        Path(f"/dev/shm/{shm_prefix}{i}").write_text("x")
    Path(f"/tmp/python_env_{run_id}").mkdir(0o700)
if "family" in modes:
    subprocess.Popen([sys.executable, "-c", f"{CHILD}; {DESCENDANT}"], start_new_session=True)
if "chatty" in modes:
    for i in range(20_000):
        echo(f"line {i} " + "x" * 200)
if "files" in modes:
    echo(f"files {sorted(int(link.name) for link in Path('/proc/self/fd').iterdir())}")

import grpc  # noqa: E402 - the output above must appear although the server does not start


def when(ready):
    return b"\x08\x01" if ready else b""  # the first field, true


def name():
    text = "stranger" if "stranger" in modes else run_id
    return b"\x0a" + bytes([len(text)]) + text.encode()  # the first field, a string


ANSWERS = {
    "ServerReady": lambda: when("never_ready" not in modes),
    "ModelReady": lambda: when(time.monotonic() >= ready_at),
    "ServerMetadata": name,
}
handlers = {
    method: grpc.unary_unary_rpc_method_handler(lambda _, __, answer=answer: answer())
    for method, answer in ANSWERS.items()
}
service = grpc.method_handlers_generic_handler("inference.GRPCInferenceService", handlers)
server = grpc.server(ThreadPoolExecutor(1), handlers=[service])
server.add_insecure_port(f"127.0.0.1:{grpc_port}")
server.start()
with socket.create_server(("127.0.0.1", int(metrics_port))):
    server.wait_for_termination()
