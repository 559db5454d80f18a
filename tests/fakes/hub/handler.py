"""The Hub's routes: reading (model info, tree, resolve) and uploading (preupload, LFS, commit)."""

from __future__ import annotations

import base64
import contextlib
import json
import re
from http.server import BaseHTTPRequestHandler
from typing import Any
from urllib.parse import parse_qs, quote, unquote, urlsplit

from tests.fakes.hub.repositories import Account, Contents, Repository, is_lfs
from tests.fakes.hub.server import SIGNATURE, HubServer, Request

_CHUNK_BYTES = 1 << 16
_NAME = r"(?P<name>[^/]+/[^/]+)"
_ROUTES = [
    ("GET", rf"/api/models/{_NAME}(?:/revision/(?P<revision>[^/]+))?", "model_info"),
    ("GET", rf"/api/models/{_NAME}/tree/(?P<revision>[^/]+)(?:/(?P<folder>.*))?", "tree"),
    ("GET", rf"/{_NAME}/resolve/(?P<revision>[^/]+)/(?P<path>.+)", "resolve"),
    ("GET", rf"/files/{_NAME}/(?P<commit>[0-9a-f]+)/(?P<path>.+)", "file"),
    ("GET", r"/api/whoami-v2", "who_am_i"),
    ("POST", r"/api/repos/create", "create"),
    ("POST", r"/api/validate-yaml", "validate_card"),
    ("POST", rf"/api/models/{_NAME}/preupload/(?P<revision>[^/]+)", "preupload"),
    ("POST", rf"/{_NAME}\.git/info/lfs/objects/batch", "lfs_batch"),
    ("PUT", r"/lfs/(?P<oid>[0-9a-f]{64})", "lfs_upload"),
    ("POST", rf"/api/models/{_NAME}/commit/(?P<revision>[^/]+)", "commit"),
]


class HubHandler(BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing; the server records requests."""

    def setup(self) -> None:
        super().setup()
        with self.hub.lock:
            self.hub.connections.add(self.connection)

    def finish(self) -> None:
        with self.hub.lock:
            self.hub.connections.discard(self.connection)
        with contextlib.suppress(OSError):
            super().finish()

    def handle_one_request(self) -> None:
        try:
            super().handle_one_request()
        except ConnectionError:
            self.close_connection = True

    @property
    def hub(self) -> HubServer:
        return self.server.hub  # type: ignore[attr-defined, no-any-return]

    def do_GET(self) -> None:
        self._serve("GET")

    def do_HEAD(self) -> None:
        self._serve("GET")

    def do_POST(self) -> None:
        self._serve("POST")

    def do_PUT(self) -> None:
        self._serve("PUT")

    def _serve(self, method: str) -> None:
        parts = urlsplit(self.path)
        self.route, self.query = unquote(parts.path), parse_qs(parts.query)
        token = (self.headers.get("Authorization") or "").removeprefix("Bearer ") or None
        asked = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range") or "")
        if self.hub.knows_no_ranges:
            asked = None
        start, end = (int(asked[1]), asked[2]) if asked else (0, "")
        last = int(end) if end else None
        self.request_ = Request(self.command, self.route, token, start, last)
        self.body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        with self.hub.lock:
            self.hub.requests.append(self.request_)
        self.fault = self.hub.take_fault(self.route)
        with contextlib.suppress(ConnectionError):
            if self.fault is not None and self.fault.status is not None:
                self._answer(self.fault.status, {"error": "fault"}, **self.fault.headers)
            elif token is not None and token not in self.hub.tokens:
                self._refuse(401, None, "Invalid credentials in Authorization header")
            else:
                self._dispatch(method)

    def _dispatch(self, method: str) -> None:
        if self.hub.any_commit and "/resolve/" in self.route:
            self._send_any_commit()
            return
        for route_method, pattern, name in _ROUTES:
            match = re.fullmatch(pattern, self.route)
            if match and method == route_method:
                known = {key: value for key, value in match.groupdict().items() if value}
                getattr(self, name)(**known)
                return
        self._refuse(404, None, f"no route for {method} {self.route}")

    # --- reading -----------------------------------------------------------------------------

    def model_info(self, name: str, revision: str = "main") -> None:
        if found := self._find(name, revision):
            repository, commit = found
            files = repository.commits[commit].items()
            siblings = [contents.described(path) for path, contents in files]
            if "blobs" not in self.query:
                siblings = [{"rfilename": entry["rfilename"]} for entry in siblings]
            gated = "manual" if repository.gated else False
            known = {"id": name, "modelId": name, "sha": commit, "siblings": siblings}
            self._answer(200, {**known, "private": repository.private, "gated": gated})

    def tree(self, name: str, revision: str, folder: str = "") -> None:
        if found := self._find(name, revision):
            repository, commit = found
            files = repository.commits[commit].items()
            self._answer(200, [c.in_tree(path) for path, c in files if path.startswith(folder)])

    def resolve(self, name: str, revision: str, path: str) -> None:
        if not (found := self._find(name, revision)):
            return
        repository, commit = found
        account = self._account
        if repository.gated and (account is None or name not in account.access_to_gated):
            self._refuse(401 if account is None else 403, "GatedRepo", f"{name} is gated")
            return
        contents = repository.commits[commit].get(path)
        headers = {"X-Repo-Commit": commit}
        if contents is None:
            self._refuse(404, "EntryNotFound", "Entry not found", **headers)
        elif not contents.lfs:
            self._send_contents(contents, **headers)
        else:
            headers["X-Linked-Size"] = str(len(contents.data))
            headers["X-Linked-Etag"] = f'"{contents.etag}"'
            signed = f"{quote(path)}?X-Amz-Signature={SIGNATURE}"
            where = f"{self.hub.files_url}/files/{name}/{commit}/{signed}"
            self._answer(302, None, Location=where, **headers)

    def _send_any_commit(self) -> None:
        """Send the file at the end of the path, ignoring commit and folders."""
        for repository in self.hub.repositories.values():
            for path, contents in repository.commits[repository.revisions["main"]].items():
                if self.route.endswith(f"/{path}"):
                    self._send_contents(contents)
                    return
        self._refuse(404, "EntryNotFound", "Entry not found")

    def file(self, name: str, commit: str, path: str) -> None:
        self._send_contents(self.hub.repositories[name].commits[commit][path])

    def who_am_i(self) -> None:
        if self._account is None:
            self._refuse(401, None, "Invalid username or password.")
        else:
            name = self._account.name
            self._answer(200, {"type": "user", "id": name, "name": name, "orgs": [], "auth": {}})

    # --- uploading ---------------------------------------------------------------------------

    def create(self) -> None:
        if self._account is None:
            self._refuse(401, None, "Invalid username or password.")
            return
        wanted = json.loads(self.body)
        owner = wanted.get("organization") or self._account.name
        name = f"{owner}/{wanted['name']}"
        url = f"{self.hub.url}/{name}"
        if name in self.hub.repositories:
            self._answer(409, {"error": "You already created this model repo", "url": url})
            return
        private = bool(wanted.get("private") or wanted.get("visibility") == "private")
        repository = self.hub.add(name, {}, private=private)
        repository.messages.clear()
        self._answer(200, {"url": url, "name": name, "id": name})

    def validate_card(self) -> None:
        self._answer(200, {"errors": [], "warnings": []})

    def preupload(self, name: str, revision: str) -> None:
        if self._find(name, revision):
            files = [
                {
                    "path": file["path"],
                    "uploadMode": "lfs" if is_lfs(file["path"], file["size"]) else "regular",
                    "shouldIgnore": False,
                    "oid": None,
                }
                for file in json.loads(self.body)["files"]
            ]
            self._answer(200, {"files": files})

    def lfs_batch(self, name: str) -> None:
        objects = []
        for wanted in json.loads(self.body)["objects"]:
            entry = {"oid": wanted["oid"], "size": wanted["size"], "authenticated": True}
            if wanted["oid"] not in self.hub.uploads:
                signed = f"{wanted['oid']}?X-Amz-Signature={SIGNATURE}"
                href = f"{self.hub.files_url}/lfs/{signed}"
                entry["actions"] = {"upload": {"href": href, "header": {}}}
            objects.append(entry)
        self._answer(200, {"transfer": "basic", "objects": objects})

    def lfs_upload(self, oid: str) -> None:
        if Contents(self.body, True).sha256 != oid:
            self._refuse(400, None, "other contents than announced")
        else:
            self.hub.uploads[oid] = self.body
            self._answer(200, {})

    def commit(self, name: str, revision: str) -> None:
        if not (found := self._find(name, revision)):
            return
        files, removed, message = {}, [], ""
        for line in self.body.splitlines():
            entry = json.loads(line)
            value = entry["value"]
            if entry["key"] == "header":
                message = value["summary"]
            elif entry["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif entry["key"] == "lfsFile":
                files[value["path"]] = self.hub.uploads[value["oid"]]
            elif entry["key"] == "deletedFile":
                removed.append(value["path"])
        commit = found[0].commit(files, revision=revision, removed=tuple(removed), message=message)
        url = f"{self.hub.url}/{name}/commit/{commit}"
        self._answer(
            200, {"success": True, "commitOid": commit, "commitUrl": url, "hookOutput": ""}
        )

    # --- answers -----------------------------------------------------------------------------

    @property
    def _account(self) -> Account | None:
        return self.hub.tokens.get(self.request_.token or "")

    def _find(self, name: str, revision: str) -> tuple[Repository, str] | None:
        """Return a visible repository and a commit; answer an error and return None otherwise."""
        repository, account = self.hub.repositories.get(name), self._account
        reads = frozenset[str]() if account is None else account.reads
        hidden = repository is None or (repository.private and not reads & {"*", name})
        if repository is None or hidden:
            status = 401 if account is None else 404
            words = "Invalid username or password." if account is None else "Repository not found"
            self._refuse(status, None if account is None else "RepoNotFound", words)
            return None
        commit = repository.find(revision)
        if commit is None:
            self._refuse(404, "RevisionNotFound", f"Invalid rev id: {revision}")
            return None
        return repository, commit

    def _refuse(self, status: int, code: str | None, words: str, **headers: str) -> None:
        known = {"X-Error-Message": words, **({"X-Error-Code": code} if code else {}), **headers}
        self._answer(status, {"error": words}, **known)

    def _answer(self, status: int, content: Any, **headers: str) -> None:
        if self.fault is not None and self.fault.edit and content is not None:
            content = self.fault.edit(content)
        body = b"" if content is None else json.dumps(content).encode()
        self._send(status, body, {"Content-Type": "application/json", **headers})

    def _send_contents(self, contents: Contents, **headers: str) -> None:
        start, last, size = self.request_.start, self.request_.last, len(contents.data)
        if start >= size > 0:
            self._send(416, b"", {"Content-Range": f"bytes */{size}"})
            return
        end = size if last is None else min(last + 1, size)
        is_part = start > 0 or end < size
        ranged = {"Content-Range": f"bytes {start}-{end - 1}/{size}"} if is_part else {}
        headers |= {"ETag": f'"{contents.etag}"', "Accept-Ranges": "bytes", **ranged}
        data = contents.data[start:end]
        if self.fault is not None and self.fault.corrupt and data:
            data = data[:-1] + bytes([data[-1] ^ 1])
        self._send(206 if is_part else 200, data, headers)

    def _send(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        end = len(body)
        cut = None if self.fault is None or self.fault.status else self.fault.cut_at
        if cut is not None:
            end = max(0, int((self.request_.start + len(body)) * cut) - self.request_.start)
        said = end if self.fault is not None and self.fault.short else len(body)
        extra = 0 if self.fault is None else self.fault.extra_bytes
        if self.fault is not None and self.fault.status is None:
            headers = {**headers, **self.fault.headers}
        self.request_.status = status
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(said + extra)}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "HEAD":
            return
        for place in range(0, end, _CHUNK_BYTES):
            self._write(body[place : min(place + _CHUNK_BYTES, end)])
        for place in range(0, extra, _CHUNK_BYTES):
            self._write(bytes(min(_CHUNK_BYTES, extra - place)))
        if end < len(body):
            self.close_connection = True

    def _write(self, chunk: bytes) -> None:
        self.hub.before_sending(self.request_)
        self.request_.sent += len(chunk)  # before the client can have the last one
        self.wfile.write(chunk)
        self.hub.pace(len(chunk))
