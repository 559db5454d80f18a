"""A temperature of 0 repeats itself and a temperature of 1 does not, in every protocol."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import httpx
import pytest
from tests.fakes.triton import serve_engine, write_engine
from tests.fakes.triton.known_model import log_probs_after
from tests.support.truss_process import Served

Fields = dict[str, Any]
PROMPT = "Write a word:"
MESSAGES = [{"role": "user", "content": PROMPT}]
TOKENS = 16
PROTOCOLS: dict[str, tuple[str, Callable[[Fields], Fields], Callable[[Any], str]]] = {
    "predict": (
        "/v1/models/model:predict",
        lambda sent: {"prompt": PROMPT, "max_tokens": TOKENS, "stream": False, **sent},
        lambda answer: str(answer["text"]),
    ),
    "chat": (
        "/v1/chat/completions",
        lambda sent: {"model": "m", "messages": MESSAGES, "max_tokens": TOKENS, **sent},
        lambda answer: str(answer["choices"][0]["message"]["content"]),
    ),
    "completions": (
        "/v1/completions",
        lambda sent: {"model": "m", "prompt": PROMPT, "max_tokens": TOKENS, **sent},
        lambda answer: str(answer["choices"][0]["text"]),
    ),
    "messages": (
        "/v1/messages",
        lambda sent: {"model": "m", "messages": MESSAGES, "max_tokens": TOKENS, **sent},
        lambda answer: str(answer["content"][0]["text"]),
    ),
    "responses": (
        "/v1/responses",
        lambda sent: {"model": "m", "input": PROMPT, "max_output_tokens": TOKENS, **sent},
        lambda answer: str(answer["output"][0]["content"][0]["text"]),
    ),
    "lmi": (
        "/invocations",
        lambda sent: {"inputs": PROMPT, "parameters": {"max_new_tokens": TOKENS, **sent}},
        lambda answer: str(answer["generated_text"]),
    ),
}
EACH_PROTOCOL = [
    pytest.param(name, marks=[] if name == "predict" else pytest.mark.thorough)
    for name in PROTOCOLS
]
"""All make the same parameters of a request: tests/protocols/test_request_fields.py."""

LIMITS: list[Fields] = [
    {},
    {"top_p": 1.0},
    {"top_p": 0.9},
    {"top_k": 50},
    {"top_k": 50, "top_p": 1.0},
]
VOCABULARY = 49152
ENGINES = [
    *(
        pytest.param((version, 1), id=f"{version}-tp1", marks=pytest.mark.thorough)
        for version in ("0.10.0", "0.18.2")
    ),
    pytest.param(("1.2.1", 2), id="1.2.1-tp2"),
]
"""In every run the newest; what each release does with a request: tests/decoding."""


@pytest.fixture(scope="module", params=ENGINES)
def built(request: pytest.FixtureRequest) -> tuple[str, int]:
    """Return the TensorRT-LLM version and the ranks of an engine."""
    found: tuple[str, int] = request.param
    return found


@pytest.fixture(scope="module")
def engine(built: tuple[str, int], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    version, tp = built
    folder = write_engine(
        tmp_path_factory.mktemp("engine"),
        version=version,
        tp=tp,
        limits={"max_beam_width": 2},
        draws=1,
    )
    served = serve_engine(folder, tp)
    try:
        yield served.wait_until_ready()
        assert served.end() == 0, served.log
    finally:
        if served.process.poll() is None:
            served.end()


def post(server: Served, protocol: str, fields: Fields) -> httpx.Response:
    path, body, _ = PROTOCOLS[protocol]
    return httpx.post(f"http://127.0.0.1:{server.port}{path}", json=body(fields), timeout=120)


def answer(server: Served, protocol: str, fields: Fields) -> str:
    response = post(server, protocol, fields)
    assert response.status_code == 200, response.text
    return PROTOCOLS[protocol][2](response.json())


def check(server: Served, protocol: str) -> None:
    """Compare the answers to two seeds, with and without limits, all asked at once."""
    cells = [
        {"temperature": temperature, "seed": seed, **limits}
        for limits in LIMITS
        for temperature in (0, 1)
        for seed in (1, 2)
    ]
    with ThreadPoolExecutor(len(cells) + 1) as pool:
        ask = partial(answer, server, protocol)
        likeliest, *answers = pool.map(ask, [{"top_k": 1}, *cells])
    for limits in LIMITS:
        *cold, hot, other = answers[:4]
        del answers[:4]
        assert cold == [likeliest, likeliest], limits
        assert hot != other, limits


@pytest.mark.parametrize("protocol", EACH_PROTOCOL)
def test_seeds_matter_at_a_temperature_alone(server: Served, protocol: str) -> None:
    check(server, protocol)


def test_min_p(server: Served) -> None:
    """As likely as the likeliest is that alone; of all tokens seeds choose different ones."""
    likeliest = answer(server, "predict", {"top_k": 1})
    for min_p, is_likeliest in ((0.999, True), (1e-6, False)):
        for seed in (1, 2):
            sent = {"temperature": 1.5, "min_p": min_p, "seed": seed}
            assert (answer(server, "predict", sent) == likeliest) is is_likeliest


@pytest.mark.server
@pytest.mark.parametrize("protocol", EACH_PROTOCOL)
def test_compiled_engines(engine: Served, protocol: str) -> None:
    check(engine, protocol)


@pytest.mark.server
def test_a_temperature_that_is_0_in_fp32(engine: Served) -> None:
    sent = {"temperature": 1e-46, "top_p": 1, "seed": 3}
    assert answer(engine, "predict", sent) == answer(engine, "predict", {"top_k": 1})


@pytest.mark.server
def test_the_figures_of_a_greedy_answer(engine: Served) -> None:
    ids = [1780, 253, 655, 260]
    wanted = []
    for _ in range(4):
        figures = log_probs_after(ids, VOCABULARY)
        ids.append(int(figures.argmax()))
        wanted.append(pytest.approx(float(figures.max()), abs=1e-4))
    sent = {"prompt": ids[:4], "max_tokens": 4, "temperature": 0, "logprobs": 1}
    (choice,) = post(engine, "completions", sent).json()["choices"]
    told = choice["logprobs"]
    assert told["token_logprobs"] == wanted
    for token, figure, top in zip(
        told["tokens"], told["token_logprobs"], told["top_logprobs"], strict=True
    ):
        assert top == {token: figure}
    refused = post(engine, "completions", {**sent, "temperature": 1})
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == "logprobs"


@pytest.mark.server
def test_what_an_engine_would_take_for_something_else(
    engine: Served, built: tuple[str, int]
) -> None:
    refused = post(engine, "predict", {"min_p": 0.1, "temperature": 1})
    assert refused.status_code == 400
    assert "min_p is not supported by a compiled engine" in refused.text
    assert post(engine, "predict", {"length_penalty": 2}).status_code == 200
    beams = post(engine, "predict", {"length_penalty": 2, "beam_width": 2, "temperature": 0})
    assert beams.status_code == (400 if built[0] == "1.2.1" else 200), beams.text
