"""The proxy, the scrape and the dashboard of examples/docker with a running server."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import socketserver
import ssl
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families
from tests.support.certificates import new_certificate
from tests.support.paths import ROOT
from tests.support.serving import serving
from tests.support.truss_process import Served, free_port
from tests.support.waiting import PATIENCE_S, settles

FOLDER = ROOT / "examples/docker"
KEY = "sk-0123456789abcdef"
PROMPT = "Once upon a time"
BODY = {"prompt": PROMPT, "max_tokens": 8, "top_k": 1}
LONG = {**BODY, "max_tokens": 4000, "ignore_eos": True}
PREDICT = "/v1/models/model:predict"
MAX_BODY_BYTES = 8 << 20
WORD = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
PROMQL_WORDS = {"by", "code", "increase", "instance", "le", "max", "rate", "reason", "sum"}
PROMQL_WORDS |= {"histogram_quantile"}
LABEL_VALUES = re.compile(r"label_values\((\w+)(\{[^}]*\})?, (\w+)\)")


def program(name: str) -> str:
    """Return the path of an optional program; skip the test without it."""
    path = os.pathsep.join([os.environ["PATH"], "/usr/sbin", "/usr/local/sbin"])
    found = shutil.which(name, path=path)
    if found is None:
        pytest.skip(f"{name} is not installed")
    return found


def replaced(text: str, values: dict[str, str]) -> str:
    for old, new in values.items():
        assert old in text, old
        text = text.replace(old, new)
    return text


@contextlib.contextmanager
def running(command: list[str], log: Path, is_ready: Callable[[], bool]) -> Iterator[None]:
    """Run a program during the block, which begins when the program is ready."""
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output)
    try:
        settles(lambda: process.poll() is not None or is_ready())
        assert is_ready(), log.read_text()
        yield
    finally:
        process.terminate()
        process.wait(PATIENCE_S)


def confinement(service: str) -> list[str]:
    """Return the command that gives root the capabilities of a service of compose.yaml."""
    settings = yaml.safe_load((FOLDER / "compose.yaml").read_text())["services"][service]
    assert settings["cap_drop"] == ["ALL"]
    kept = [f"+{name.lower()}" for name in settings["cap_add"]]
    options = ["--no-new-privs", "--inh-caps=-all", f"--bounding-set=-all,{','.join(kept)}"]
    return [program("setpriv"), *options]


class Proxy:
    """nginx with the example's configuration on a free port of loopback.

    Attributes:
        client: has the key and the certificate.
    """

    def __init__(self, folder: Path, upstream_port: int) -> None:
        self.port = free_port()
        self._folder = folder
        certificate = folder / "tls.pem"
        certificate.write_bytes(new_certificate("localhost"))
        (folder / "keys").mkdir()
        self.add_key(KEY, "alice")
        values = {
            "/tmp/": f"{folder}/",
            "truss:8081": f"127.0.0.1:{upstream_port}",
            "listen 8443": f"listen 127.0.0.1:{self.port}",
            "/etc/nginx/tls/tls.crt": str(certificate),
            "/etc/nginx/tls/tls.key": str(certificate),
            "/etc/nginx/keys/": f"{folder}/keys/",
            "/dev/stdout": str(folder / "access.log"),
            "/dev/stderr": str(folder / "nginx.log"),
            "worker_processes auto": "worker_processes 1",
        }
        text = replaced((FOLDER / "nginx.conf").read_text(), values)
        (folder / "nginx.conf").write_text(text)
        self.client = httpx.Client(
            base_url=f"https://localhost:{self.port}",
            verify=ssl.create_default_context(cafile=str(certificate)),
            headers={"Authorization": f"Bearer {KEY}"},
            timeout=240,
            trust_env=False,
        )

    @contextlib.contextmanager
    def running(self) -> Iterator[Proxy]:
        command = [program("nginx"), "-c", str(self._folder / "nginx.conf"), "-p"]
        is_root = os.geteuid() == 0
        command += [str(self._folder), "-g", f"daemon off;{' user root;' if is_root else ''}"]
        if is_root:
            command = [*confinement("proxy"), *command]
        with self.client, running(command, self._folder / "output.log", self._answers):
            yield self

    def _answers(self) -> bool:
        try:
            self.client.get("/")
        except httpx.ConnectError:
            return False
        return True

    def add_key(self, key: str, name: str) -> None:
        (self._folder / "keys" / f"{name}.conf").write_text(f'"{key}" {name};\n')

    def reload(self) -> None:
        os.kill(int((self._folder / "nginx.pid").read_text()), signal.SIGHUP)

    def logged(self) -> str:
        names = ("nginx.log", "access.log", "output.log")
        return "".join((self._folder / name).read_text() for name in names)


MakeProxy = Callable[[int], Proxy]


@pytest.fixture(scope="module")
def make_proxy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MakeProxy]:
    with contextlib.ExitStack() as stack:
        yield lambda port: stack.enter_context(
            Proxy(tmp_path_factory.mktemp("nginx"), port).running()
        )


@pytest.fixture(scope="module")
def proxy(server: Served, make_proxy: MakeProxy) -> Proxy:
    return make_proxy(server.port)


@pytest.mark.parametrize(
    "headers",
    [
        {"Authorization": f"Bearer {KEY}"},
        {"Authorization": f"Api-Key {KEY}"},
        {"x-api-key": KEY, "Authorization": ""},
    ],
)
def test_the_proxy_passes_an_answer_to_a_client_with_a_key(
    proxy: Proxy, server: Served, headers: dict[str, str]
) -> None:
    answer = proxy.client.post(PREDICT, json=BODY, headers=headers)
    assert answer.status_code == 200
    assert answer.text == server.post(BODY).text


@pytest.mark.parametrize(
    "headers", [{"Authorization": ""}, {"Authorization": f"Bearer {KEY}0"}, {"x-api-key": "a"}]
)
def test_the_proxy_refuses_other_clients(proxy: Proxy, headers: dict[str, str]) -> None:
    answer = proxy.client.post(PREDICT, json=BODY, headers={"Authorization": "", **headers})
    assert (answer.status_code, answer.json()["error"]["code"]) == (401, "unauthorized")


@pytest.mark.parametrize("path", ["/metrics/", "/hot-reload", "/", f"{PREDICT}_binary"])
def test_the_proxy_serves_no_other_route(proxy: Proxy, path: str) -> None:
    answer = proxy.client.post(path, json=BODY)
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "not_found")


def test_every_route_for_clients_is_served(proxy: Proxy) -> None:
    counting = ("responses/input_tokens", "messages/count_tokens")
    for path in ("chat/completions", "completions", "responses", "messages", *counting):
        assert proxy.client.post(f"/v1/{path}", json={}).status_code == 400, path
    for path in ("/tokenize", "/detokenize"):
        assert proxy.client.post(path, json={}).status_code == 400, path
    assert proxy.client.post("/invocations", json={}).status_code in (400, 424)
    health = proxy.client.get("/health", headers={"Authorization": ""})
    assert health.status_code == 200


def test_the_proxy_neither_buffers_a_stream_nor_keeps_an_abandoned_one(
    proxy: Proxy, server: Served
) -> None:
    before = len(server.cancelled())
    with proxy.client.stream("POST", PREDICT, json=LONG) as answer:
        pieces = answer.iter_raw()
        assert next(pieces)
        assert server.running() == 1  # the whole answer takes a minute
    assert settles(lambda: len(server.cancelled()) > before)
    assert settles(lambda: server.running() == 0)  # pages are up to tens of milliseconds old


def test_new_keys_work_after_a_reload_that_cuts_no_stream(proxy: Proxy) -> None:
    def status() -> int:
        headers = {"Authorization": "Bearer sk-new"}
        try:
            return proxy.client.post(PREDICT, json=BODY, headers=headers).status_code
        except httpx.RemoteProtocolError:
            return 0  # a reload closes idle connections

    assert status() == 401
    with proxy.client.stream("POST", PREDICT, json=LONG) as answer:
        pieces = answer.iter_raw()
        assert next(pieces)
        proxy.add_key("sk-new", "bob")
        proxy.reload()
        assert settles(lambda: status() == 200)
        assert next(pieces)


def test_the_proxy_bounds_bodies(proxy: Proxy) -> None:
    refused = proxy.client.post(PREDICT, content=b" " * (MAX_BODY_BYTES + 1))
    assert (refused.status_code, refused.json()["error"]["code"]) == (413, "body_too_large")
    passed = proxy.client.post(PREDICT, content=b" " * MAX_BODY_BYTES)
    assert passed.status_code == 400  # read whole, and not JSON


def test_the_proxy_needs_tls(proxy: Proxy) -> None:
    plain = httpx.post(
        f"http://localhost:{proxy.port}{PREDICT}", json=BODY, trust_env=False, timeout=60
    )
    assert plain.status_code == 400


def test_the_proxy_logs_neither_keys_nor_prompts(proxy: Proxy) -> None:
    proxy.client.post(f"{PREDICT}?key={KEY}", json=BODY)
    assert settles(lambda: f'alice "POST {PREDICT}" 200' in proxy.logged())
    assert KEY not in proxy.logged()
    assert PROMPT not in proxy.logged()


class CutsStreams(socketserver.StreamRequestHandler):
    """Sends the begin of a chunked answer, then closes."""

    def handle(self) -> None:
        while self.rfile.readline().strip():
            pass
        head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
        self.wfile.write(head + b"4\r\nOnce\r\n")


def test_a_cut_stream_looks_cut_through_the_proxy(make_proxy: MakeProxy) -> None:
    upstream = socketserver.ThreadingTCPServer(("127.0.0.1", 0), CutsStreams)
    with serving(upstream):
        proxy = make_proxy(upstream.server_address[1])
        with proxy.client.stream("POST", PREDICT, json=BODY) as answer:
            pieces = answer.iter_text()
            assert next(pieces) == "Once"
            with pytest.raises(httpx.RemoteProtocolError):
                next(pieces)
    down = proxy.client.post(PREDICT, json=BODY)
    assert (down.status_code, down.json()["error"]["code"]) == (503, "engine_unavailable")
    assert down.headers["Retry-After"] == "5"


DASHBOARD = json.loads((FOLDER / "grafana/dashboard.json").read_text())
ALL = {"$__rate_interval": "1m", "$__range": "1m", "$instance": ".+", "$model": ".+"}
"""Grafana's variables, and the dashboard's own with all of their values chosen."""


def filled_in(query: str) -> str:
    for name, value in ALL.items():
        query = query.replace(name, value)
    assert "$" not in query, query
    return query


def queries() -> dict[str, list[str]]:
    """Return the expressions of each panel."""
    return {
        f"{panel['id']} {panel['title']}": [filled_in(each["expr"]) for each in panel["targets"]]
        for panel in DASHBOARD["panels"]
    }


def variables() -> dict[str, tuple[str, str]]:
    """Return the selector and the label from which each variable takes its values."""
    found = {}
    for each in DASHBOARD["templating"]["list"]:
        if each["type"] == "query":
            name, matchers, label = LABEL_VALUES.fullmatch(each["query"]["query"]).groups()
            found[each["name"]] = (filled_in(f"{name}{matchers or ''}"), label)
    return found


def autoscaler_query() -> str:
    file = ROOT / "examples/kubernetes/autoscaling.yaml"
    (trigger,) = yaml.safe_load(file.read_text())["spec"]["triggers"]
    return str(trigger["metadata"]["query"])


def load(server: Served) -> None:
    """Make every kind of end happen: finished, refused and abandoned requests."""
    server.post(BODY)
    server.post({"prompt": 1})
    before = len(server.cancelled())
    with httpx.stream("POST", server.url, json=LONG, timeout=60) as answer:
        next(answer.iter_raw())
    assert settles(lambda: len(server.cancelled()) > before)


def test_every_query_names_metrics_and_labels_of_a_loaded_server(server: Served) -> None:
    load(server)
    page = httpx.get(f"http://127.0.0.1:{server.port}/metrics/", timeout=60).text
    labels: dict[str, set[tuple[str, str]]] = {}
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            labels.setdefault(sample.name, set()).update(sample.labels.items())
    assert set(variables()) == {"model", "instance"}
    for name, label in variables().values():
        own = {label for label, _ in labels[name.partition("{")[0]]}
        assert label == "instance" or label in own, (name, label)  # Prometheus adds the former
    for panel, expressions in queries().items():
        for expression in expressions:
            bare = re.sub(r'\{[^}]*\}|\[[^\]]*\]|"[^"]*"', "", expression)
            used = set(WORD.findall(bare)) - PROMQL_WORDS
            assert used, panel
            assert used <= set(labels), (panel, used - set(labels))
            for name, matchers in re.findall(r"(\w+)\{([^}]*)\}", expression):
                assert 'instance=~".+"' in matchers, (panel, name)
                for label, value in re.findall(r'(\w+)="([^"]*)"', matchers):
                    assert (label, value) in labels[name], (panel, label, value)
            for grouped in re.findall(r"by \((\w+)\)", expression):
                present = {label for name in used for label, _ in labels[name]}
                assert grouped == "instance" or grouped in present, (panel, grouped)


def test_prometheus_answers_every_query(server: Served, tmp_path: Path) -> None:
    port = free_port()
    values = {"truss:8081": f"127.0.0.1:{server.port}", "15s": "1s"}
    config = tmp_path / "prometheus.yml"
    config.write_text(replaced((FOLDER / "prometheus.yml").read_text(), values))
    command = [program("prometheus"), f"--config.file={config}"]
    command += [f"--storage.tsdb.path={tmp_path / 'data'}", "--log.level=warn"]
    command += [f"--web.listen-address=127.0.0.1:{port}"]

    def answered(expression: str) -> list[dict[str, Any]]:
        try:
            answer = httpx.get(
                f"http://127.0.0.1:{port}/api/v1/query",
                params={"query": expression},
                trust_env=False,
                timeout=60,
            )
        except httpx.TransportError:
            return []
        if answer.status_code == 503:  # it reads its storage
            return []
        assert answer.status_code == 200, (expression, answer.text)
        return list(answer.json()["data"]["result"])

    def scraped_twice() -> bool:
        return bool(answered('sum_over_time(up{job="truss"}[1m]) > 1'))

    with running(command, tmp_path / "prometheus.log", scraped_twice):
        load(server)
        rising = "increase(trtllm_truss_requests_cancelled_total[1m]) > 0"
        assert settles(lambda: bool(answered(rising)))
        empty = [
            (panel, expression)
            for panel, expressions in queries().items()
            for expression in expressions
            if not answered(expression)
        ]
        series = {name: answered(selector) for name, (selector, _) in variables().items()}
        (scaled,) = answered(autoscaler_query())
    assert empty == []
    for name, (_, label) in variables().items():
        assert all(each["metric"][label] for each in series[name]), name
        assert series[name], name
    assert scaled["metric"] == {}
    assert float(scaled["value"][1]) >= 0  # and no NaN
