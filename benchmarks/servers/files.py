"""`python -m benchmarks.servers.files FOLDER`: a Hub on loopback that sends files by sendfile.

Each folder below FOLDER is a repository `bench/<name>`. The port is the first line of the output.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from benchmarks.paths import ROOT

COMMIT = "c" * 40
_SENT_BYTES = 1 << 24


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    folder: Path
    digests: dict[Path, str]

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing."""

    def handle(self) -> None:
        """Stop when the client disconnects."""
        with contextlib.suppress(ConnectionError):
            super().handle()

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = unquote(urlsplit(self.path).path)
        if match := re.fullmatch(r"/api/models/bench/([^/]+)/tree/[^/]+", path):
            self._answer(self._files(match[1]))
        elif match := re.fullmatch(r"/api/models/bench/([^/]+)(/revision/[^/]+)?", path):
            known = {"id": f"bench/{match[1]}", "sha": COMMIT, "private": False}
            self._answer({**known, "siblings": self._files(match[1])})
        elif match := re.fullmatch(r"/bench/([^/]+)/resolve/[^/]+/([^/]+)", path):
            self._send(self.folder / match[1] / match[2])
        else:
            self.send_error(404)

    def _files(self, name: str) -> list[dict[str, Any]]:
        """Describe files with the keys of both a listing and a tree."""
        found = []
        for path in sorted((self.folder / name).iterdir()):
            size, digest = path.stat().st_size, self.digests[path]
            lfs = {"oid": digest, "sha256": digest, "size": size, "pointerSize": 134}
            both = {"size": size, "lfs": lfs, "oid": digest[:40], "blobId": digest[:40]}
            found.append({**both, "type": "file", "path": path.name, "rfilename": path.name})
        return found

    def _answer(self, content: Any) -> None:
        body = json.dumps(content).encode()
        self._head(200, len(body), {"Content-Type": "application/json"})
        self.wfile.write(body)

    def _send(self, path: Path) -> None:
        size = path.stat().st_size
        asked = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range") or "")
        start = int(asked[1]) if asked else 0
        end = min(int(asked[2]) + 1, size) if asked and asked[2] else size
        headers = {"ETag": f'"{self.digests[path]}"', "X-Repo-Commit": COMMIT}
        headers |= {"Content-Range": f"bytes {start}-{end - 1}/{size}"} if asked else {}
        self._head(206 if asked else 200, end - start, headers)
        if self.command == "HEAD":
            return
        with path.open("rb") as stream:
            while start < end:
                left = min(end - start, _SENT_BYTES)
                start += os.sendfile(self.connection.fileno(), stream.fileno(), start, left)

    def _head(self, status: int, length: int, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(length)}.items():
            self.send_header(name, value)
        self.end_headers()


@contextlib.contextmanager
def files_server(folder: Path) -> Iterator[str]:
    """Serve a folder from a separate process; yield the URL."""
    command = [sys.executable, "-m", "benchmarks.servers.files", str(folder.resolve())]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        try:
            assert process.stdout is not None
            yield f"http://127.0.0.1:{int(process.stdout.readline())}"
        finally:
            process.kill()


def main() -> None:
    """Serve until killed."""
    _Handler.folder = Path(sys.argv[1])
    _Handler.digests = {}
    for path in _Handler.folder.glob("*/*"):
        with path.open("rb") as stream:
            digest = hashlib.sha256()
            while chunk := stream.read(_SENT_BYTES):
                digest.update(chunk)
            _Handler.digests[path] = digest.hexdigest()
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    server.daemon_threads = True
    sys.stdout.write(f"{server.server_address[1]}\n")
    sys.stdout.flush()
    server.serve_forever()


if __name__ == "__main__":
    main()
