"""Hostile and expensive guides must not delay other clients or crash the engine."""

from __future__ import annotations

import concurrent.futures
import importlib.util
import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

import httpx
import pytest
import yaml
from pydantic import BaseModel, ConfigDict, Field
from tests.fakes.triton import FAKE_ENGINE, write_engine
from tests.support.paths import EXAMPLE, ROOT
from tests.support.smollm2 import write_small_smollm2, write_smollm2_tokenizer
from tests.support.truss_process import Served
from tests.support.waiting import PATIENCE_S

STANDSTILL_S = 9.0
"""Above any pause of a healthy stream, on a busy machine too; 16 kB of brackets caused ten."""
TORCH_STUB = ROOT / "tests/fakes/torch"
SLOW = "64 kB that compile for ever"
HOSTILE = {
    "16 kB of brackets": "[" * 16_000,
    "64 kB of brackets": "[" * 65_536,
    "a small one that overflows stacks": "((a|b1){1,300}c?){1,301}",
    "a small one whose tokens take seconds": "([a-z]{0,100}){0,100}",
    SLOW: "a?" * 32_768,
}
BESIDE_A_STREAM = ("16 kB of brackets", "a small one whose tokens take seconds")
"""The others are sent to a compiled engine only, whose check is the same program."""


def chat(served: Served, kind: str, guide: Any, **fields: Any) -> httpx.Response:
    base = served.url.removesuffix("/v1/models/model:predict")
    body = {
        "messages": [{"role": "user", "content": "Say anything."}],
        "response_format": {"type": kind, kind: guide},
        "max_tokens": 8,
        **fields,
    }
    return httpx.post(f"{base}/v1/chat/completions", json=body, timeout=2 * PATIENCE_S)


class Neighbour:
    """A long stream of another client; counts the received pieces."""

    def __init__(self, served: Served) -> None:
        self._url = served.url
        self._left = False
        self.pieces = 0
        self._grown = threading.Condition()
        self._thread = threading.Thread(target=self._read)

    def __enter__(self) -> Neighbour:
        self._thread.start()
        self.gets(3)
        return self

    def __exit__(self, *_: object) -> None:
        self._left = True
        self._thread.join(PATIENCE_S)

    def gets(self, pieces: int) -> None:
        """Wait for further chunks."""
        with self._grown:
            wanted = self.pieces + pieces
            assert self._grown.wait_for(lambda: self.pieces >= wanted, pieces * STANDSTILL_S)

    def _read(self) -> None:
        body = {"prompt": "Once upon a time", "max_tokens": 8000, "ignore_eos": True}
        with httpx.stream("POST", self._url, json=body, timeout=2 * PATIENCE_S) as answer:
            for _ in answer.iter_raw():
                with self._grown:
                    self.pieces += 1
                    self._grown.notify_all()
                if self._left:
                    return


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[] if name in BESIDE_A_STREAM else pytest.mark.thorough)
        for name in HOSTILE
    ],
)
def test_a_hostile_guide_does_not_block_a_stream(server: Served, name: str) -> None:
    with Neighbour(server) as neighbour, concurrent.futures.ThreadPoolExecutor(1) as pool:
        refused = pool.submit(chat, server, "regex", HOSTILE[name])
        while not refused.done():
            neighbour.gets(1)
        neighbour.gets(3)
    answer = refused.result()
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert error["param"] == "response_format"
    assert error["message"].startswith("response_format cannot be followed: ")


def guided_pieces(served: Served, length: int) -> None:
    schema = {"schema": {"type": "string", "maxLength": length}}
    answer = chat(served, "json_schema", schema)
    assert answer.status_code == 200, answer.text


@pytest.mark.thorough  # in every run: the same of the engine, in tests/engines/cpu
def test_a_stream_goes_on_while_a_guide_is_compiled(server: Served) -> None:
    """Compile for seconds, in the worker and in the engine."""
    with Neighbour(server) as neighbour, concurrent.futures.ThreadPoolExecutor(1) as pool:
        before = neighbour.pieces
        answer = pool.submit(guided_pieces, server, 80)
        while not answer.done():
            neighbour.gets(1)
        assert neighbour.pieces - before >= 10
    answer.result()


class Address(BaseModel):
    model_config = ConfigDict(extra="forbid")
    street: str = Field(max_length=6)
    number: int = Field(ge=1, le=99)


class Contact(BaseModel):
    """Every kind of value, each short."""

    model_config = ConfigDict(extra="forbid", strict=True)
    länge: bool
    kind: Literal["a b", "c"]
    addresses: list[Address] = Field(min_length=1, max_length=2)
    note: Annotated[str, Field(max_length=4)] | None
    pair: tuple[bool, Literal[7]]


class Limit(BaseModel):
    model_config = ConfigDict(extra="forbid")
    name: Literal["Alice", "Bob"]
    age: int = Field(ge=0, le=120)


ASKED = [{"role": "user", "content": "Alice is 30"}]
PARAMETERS = Contact.model_json_schema()
TOOL = {"name": "note", "parameters": PARAMETERS}
CHAT_TOOL = {"tools": [{"type": "function", "function": TOOL}]}
FORMAT = {"type": "json_schema", "json_schema": {"name": "contact", "schema": PARAMETERS}}
WAYS: dict[str, tuple[str, dict[str, Any], Callable[[Any], list[str]]]] = {
    "chat": (
        "chat/completions",
        {"messages": ASKED, "response_format": FORMAT, "n": 2},
        lambda whole: [choice["message"]["content"] for choice in whole["choices"]],
    ),
    "named tool": (
        "chat/completions",
        {
            "messages": ASKED,
            **CHAT_TOOL,
            "tool_choice": {"type": "function", "function": {"name": "note"}},
        },
        lambda whole: [arguments_of(whole["choices"][0]["message"])],
    ),
    "required tool": (
        "chat/completions",
        {"messages": ASKED, **CHAT_TOOL, "tool_choice": "required"},
        lambda whole: [arguments_of(whole["choices"][0]["message"])],
    ),
    "completions": (
        "completions",
        {"prompt": "Alice", "guided_json": PARAMETERS},
        lambda whole: [whole["choices"][0]["text"]],
    ),
    "responses": (
        "responses",
        {
            "input": ASKED,
            "max_output_tokens": 200,
            "text": {"format": {"type": "json_schema", "name": "c", "schema": PARAMETERS}},
        },
        lambda whole: [whole["output"][-1]["content"][0]["text"]],
    ),
    "messages": (
        "messages",
        {
            "messages": ASKED,
            "output_config": {"format": {"type": "json_schema", "schema": PARAMETERS}},
        },
        lambda whole: [whole["content"][0]["text"]],
    ),
    "LMI": (
        "models/model:predict",
        {
            "inputs": "Alice",
            "parameters": {
                "max_new_tokens": 200,
                "do_sample": True,
                "grammar": {"type": "json", "value": PARAMETERS},
            },
        },
        lambda whole: [whole["generated_text"]],
    ),
    "predict": (
        "models/model:predict",
        {"prompt": "Alice", "stream": False, "response_format": FORMAT},
        lambda whole: [whole["text"]],
    ),
}


IN_EVERY_RUN = ("chat", "named tool", "messages", "LMI")
EACH_WAY = [
    pytest.param(way, marks=[] if way in IN_EVERY_RUN else pytest.mark.thorough) for way in WAYS
]
"""All write the same guide: tests/protocols and tests/guides/test_guide_texts.py."""


def arguments_of(message: dict[str, Any]) -> str:
    (call,) = message["tool_calls"]
    return str(call["function"]["arguments"])


@pytest.fixture(scope="module")
def contacts(
    server: Served, request: pytest.FixtureRequest
) -> dict[str, concurrent.futures.Future[httpx.Response]]:
    """The answers by way, all asked at once: one step is for all of them."""
    base = server.url.removesuffix("/models/model:predict")
    runs_all = request.config.getoption("--engines") == "all"
    ways = WAYS if runs_all else IN_EVERY_RUN

    def ask(way: str) -> httpx.Response:
        route, body, _ = WAYS[way]
        if way != "LMI":
            body = {"temperature": 1, **body}
            if way != "responses":
                body = {"max_tokens": 200, **body}
        return httpx.post(f"{base}/{route}", json=body, timeout=2 * PATIENCE_S)

    with concurrent.futures.ThreadPoolExecutor(len(ways)) as pool:
        return {way: pool.submit(ask, way) for way in ways}


@pytest.mark.parametrize("way", EACH_WAY)
def test_json_has_fixed_blanks_and_follows_its_schema(
    contacts: dict[str, concurrent.futures.Future[httpx.Response]], way: str
) -> None:
    answer = contacts[way].result()
    assert answer.status_code == 200, answer.text
    _, _, texts = WAYS[way]
    for text in texts(answer.json()):
        Contact.model_validate_json(text)
        assert text == json.dumps(json.loads(text), ensure_ascii=False)


@pytest.mark.parametrize("stream", [False, True])
def test_a_greedy_model_does_not_fill_an_answer_with_blanks(server: Served, stream: bool) -> None:
    """Ask as the clients do whose answers were newlines up to the limit."""

    def ask(**fields: Any) -> str:
        schema = {"schema": Limit.model_json_schema()}
        answer = chat(
            server, "json_schema", schema, **{"messages": ASKED, "max_tokens": 200, **fields}
        )
        if not stream:
            return str(answer.json()["choices"][0]["message"]["content"])
        events = [line.removeprefix("data: ") for line in answer.text.split("\n\n")[:-2]]
        deltas = [choice["delta"] for event in events for choice in json.loads(event)["choices"]]
        return "".join(delta.get("content") or "" for delta in deltas)

    text = ask(temperature=0, stream=stream)
    assert Limit.model_validate_json(text).name == "Alice"
    assert text == json.dumps(json.loads(text))
    filled = ask(temperature=0, stream=stream, disable_any_whitespace=False, max_tokens=8)
    assert filled.startswith("{\n")


@pytest.fixture
def impatient_server(tmp_path: Path) -> Iterator[Served]:
    """A CPU server with a small model and a `hang_timeout_s` of 1."""
    config = yaml.safe_load(EXAMPLE.read_text())
    config.pop("external_package_dirs", None)
    model = write_small_smollm2(tmp_path / "model")
    config["model_metadata"] = {
        "engine_repository": str(model),
        "serving": {"hang_timeout_s": 1},
    }
    file = tmp_path / "config.yaml"
    file.write_text(yaml.safe_dump(config))
    served = Served(file)
    try:
        yield served.wait_until_ready()
    finally:
        if served.process.poll() is None:
            served.end()


def test_slow_guides_do_not_count_as_a_hang(impatient_server: Served) -> None:
    """Send a guide that is refused after seconds, and one that compiles for seconds."""
    with concurrent.futures.ThreadPoolExecutor() as pool:
        refused = pool.submit(chat, impatient_server, "regex", HOSTILE[SLOW])
        followed = pool.submit(guided_pieces, impatient_server, 100)  # far below the limit
        assert refused.result().status_code == 400
        followed.result()
    assert "engine exited" not in impatient_server.log
    assert chat(impatient_server, "regex", "(yes|no)").status_code == 200


@pytest.fixture(scope="module")
def gpu_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server with the fake engine and the real XGrammar."""
    if importlib.util.find_spec("xgrammar") is None:
        pytest.skip("xgrammar is not installed")
    folder = tmp_path_factory.mktemp("gpu")
    engine = write_engine(folder / "engine", step_ms=10)
    config = yaml.safe_load(EXAMPLE.read_text())
    torch = [str(TORCH_STUB)] if importlib.util.find_spec("torch") is None else []
    config["external_package_dirs"] = torch
    config["model_metadata"] = {
        "engine_repository": str(engine),
        "tokenizer_repository": str(write_smollm2_tokenizer(folder / "tokenizer")),
        "runtime": {"guided_decoding_backend": "xgrammar"},
    }
    file = folder / "config.yaml"
    file.write_text(yaml.safe_dump(config))
    served = Served(file, FAKE_ENGINE)
    try:
        yield served.wait_until_ready()
        assert served.end() == 0, served.log
        assert not served.leftovers()
    finally:
        if served.process.poll() is None:
            served.process.kill()


@pytest.mark.parametrize(
    "name",
    [
        # In every run: test_slow_guides_do_not_count_as_a_hang
        pytest.param(name, marks=[pytest.mark.thorough] if name == SLOW else [])
        for name in HOSTILE
    ],
)
def test_tensorrt_llm_never_sees_a_hostile_guide(gpu_server: Served, name: str) -> None:
    answer = completion(gpu_server, HOSTILE[name])
    assert answer.status_code == 400, answer.text
    assert "response_format cannot be followed: " in answer.text


def test_tensorrt_llm_sees_a_good_one(gpu_server: Served) -> None:
    answer = completion(gpu_server, "(yes|no)")
    assert answer.status_code == 200, answer.text


def completion(served: Served, regex: str) -> httpx.Response:
    """Ask for a completion; the fake engine repeats the prompt."""
    base = served.url.removesuffix("/v1/models/model:predict")
    guide = {"type": "regex", "regex": regex}
    body = {"prompt": "One two", "max_tokens": 4, "response_format": guide}
    return httpx.post(f"{base}/v1/completions", json=body, timeout=2 * PATIENCE_S)
