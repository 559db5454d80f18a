"""A small program in place of Triton: `pretend_server.py RUN_ID HTTP_PORT SHM_PREFIX MODE…`.

Modes, any number of them:
    slow         half a second until ready
    never_ready  answers, but is never ready
    stranger     is ready under another name
    crash        ends with status 3 before it listens
    port_taken   says so and ends, unless a file `port_taken` is in the folder; makes that file
    port_lost    says that a port is taken, as a ready server may of another's, and goes on
    stubborn     ignores SIGTERM
    chatty       prints 20,000 long lines before it is ready
    family       starts a child that ignores SIGTERM and has a session, and a child of its own
    memory       makes two shared-memory segments
    files        prints its open file descriptors
"""

import contextlib
import http.server
import json
import signal
import subprocess
import sys
import time
from pathlib import Path

run_id, port, shm_prefix, *modes = sys.argv[1:]
ready_at = time.monotonic() + (0.5 if "slow" in modes else 0)
DESCENDANT = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
CHILD = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {DESCENDANT!r}])"


def say(line):
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        ready = time.monotonic() >= ready_at and "never_ready" not in modes
        body = json.dumps({"name": "stranger" if "stranger" in modes else run_id}).encode()
        self.send_response(200 if ready or self.path == "/v2" else 400)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


if "stubborn" in modes:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
if "crash" in modes:
    say('E1121 08:45:15.576576 7594 model_lifecycle.cc:654] "failed to load: no engine"')
    say("bye")
    sys.exit(3)
if "port_taken" in modes and not Path("port_taken").exists():
    Path("port_taken").touch()
    say("error: failed to start HTTP service: Unavailable - Socket already in use")
    sys.exit(1)
if "port_lost" in modes:
    say("Address already in use")
if "memory" in modes:
    for i in range(2):
        Path(f"/dev/shm/{shm_prefix}{i}").write_text("x")
if "family" in modes:
    subprocess.Popen([sys.executable, "-c", f"{CHILD}; {DESCENDANT}"], start_new_session=True)
if "chatty" in modes:
    for i in range(20_000):
        say(f"line {i} " + "x" * 200)
if "files" in modes:
    say(f"files {sorted(int(link.name) for link in Path('/proc/self/fd').iterdir())}")
with contextlib.suppress(KeyboardInterrupt):
    http.server.ThreadingHTTPServer(("127.0.0.1", int(port)), Handler).serve_forever()
