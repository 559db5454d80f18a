"""Log probabilities from the logits of a compiled engine, compared with those of its model."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

import httpx
import pytest
from tests.fakes.triton import serve_engine, write_engine
from tests.fakes.triton.known_model import log_probs_after
from tests.support.truss_process import Served
from tests.support.waiting import settles

pytestmark = pytest.mark.server

VOCABULARY = 49152
ANSWER = [504, 3575, 282, 4649, 314, 7042]
PROMPT = [1780, 253, 655, 260]
NO_EVICTION = {"batch_scheduler_policy": "guaranteed_no_evict"}
EXACT = 1e-6


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = write_engine(
        tmp_path_factory.mktemp("engine"),
        limits={"gather_context_logits": True, "gather_generation_logits": True},
        tokens=ANSWER,
        log_requests=1,
    )
    served = serve_engine(folder, runtime=NO_EVICTION)
    try:
        yield served.wait_until_ready()
        assert served.end() == 0, served.log
    finally:
        if served.process.poll() is None:
            served.end()


@pytest.fixture(scope="module")
def base_url(served: Served) -> str:
    return f"http://127.0.0.1:{served.port}/v1"


def expected(
    before: Sequence[int], ids: Sequence[int], top: int
) -> list[tuple[float, list[float]]]:
    """Return the log probability of each id, and those of the likeliest ones at its position."""
    found = []
    for place, token in enumerate(ids):
        values = log_probs_after([*before, *ids[:place]], VOCABULARY)
        found.append((float(values[token]), sorted(values.tolist(), reverse=True)[:top]))
    return found


def answer(url: str, body: dict[str, Any]) -> dict[str, Any]:
    response = httpx.post(url, json=body, timeout=60)
    assert response.status_code == 200, response.text
    result: dict[str, Any] = response.json()
    return result


def events(url: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    response = httpx.post(url, json={**body, "stream": True}, timeout=60)
    assert response.status_code == 200, response.text
    texts = response.text.removesuffix("\n\n").split("\n\n")
    return [json.loads(text.removeprefix("data: ")) for text in texts[:-1]]


@pytest.mark.parametrize("max_tokens", [0, 1, 5])
def test_a_prompt_and_the_tokens_after_it(base_url: str, max_tokens: int) -> None:
    body = {"model": "m", "prompt": PROMPT, "echo": True, "logprobs": 4, "max_tokens": max_tokens}
    (choice,) = answer(f"{base_url}/completions", body)["choices"]
    told = choice["logprobs"]
    wanted = expected(PROMPT[:1], [*PROMPT[1:], *ANSWER[:max_tokens]], 4)
    assert told["token_logprobs"][0] is told["top_logprobs"][0] is None
    assert told["token_logprobs"][1:] == pytest.approx([value for value, _ in wanted], abs=EXACT)
    for found, (chosen, likeliest) in zip(told["top_logprobs"][1:], wanted, strict=True):
        values = sorted(found.values(), reverse=True)
        assert values == pytest.approx(sorted([chosen, *likeliest], reverse=True), abs=EXACT)
    streamed = [
        event["choices"][0]["logprobs"] for event in events(f"{base_url}/completions", body)
    ]
    figures = [value for each in streamed if each for value in each["token_logprobs"]]
    assert figures == told["token_logprobs"]


def asked(served: Served, answered: dict[str, Any]) -> dict[str, Any]:
    """Wait until the engine's log has the request of an answer, and return it."""
    call_id = re.sub(r"^[a-z]+[-_]", "", answered["id"])
    pattern = rf"\] request id={call_id} (\{{.*\}})"
    assert settles(lambda: re.search(pattern, served.log) is not None)
    note: dict[str, Any] = json.loads(re.findall(pattern, served.log)[0])
    return note


@pytest.mark.parametrize("stream", [False, True])
def test_alternatives_of_sampled_tokens(served: Served, base_url: str, stream: bool) -> None:
    body = {
        **{"model": "m", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 5},
        **{"logprobs": True, "top_logprobs": 3, "n": 2, "temperature": 1.5, "top_p": 0.5},
    }
    url = f"{base_url}/chat/completions"
    items = events(url, body) if stream else [answer(url, body)]
    choices: list[list[dict[str, Any]]] = [[], []]
    for choice in [choice for item in items for choice in item["choices"]]:
        choices[choice["index"]] += (choice["logprobs"] or {}).get("content") or []
    prompt = asked(served, items[0])["inputs"]["input_ids"]
    wanted = expected(prompt, ANSWER[:5], 3)
    for tokens in choices:
        assert [token["logprob"] for token in tokens] == pytest.approx(
            [value for value, _ in wanted], abs=EXACT
        )
        for token, (_, likeliest) in zip(tokens, wanted, strict=True):
            values = [other["logprob"] for other in token["top_logprobs"]]
            assert values == pytest.approx(likeliest, abs=EXACT)


def test_alternatives_of_a_response(served: Served, base_url: str) -> None:
    body = {
        **{"model": "m", "input": "Hello", "max_output_tokens": 16, "top_logprobs": 2},
        "include": ["message.output_text.logprobs"],
    }
    response = answer(f"{base_url}/responses", body)
    (message,) = response["output"]
    found = message["content"][0]["logprobs"]
    wanted = expected(asked(served, response)["inputs"]["input_ids"], ANSWER, 2)
    assert [[other["logprob"] for other in token["top_logprobs"]] for token in found] == [
        pytest.approx(likeliest, abs=EXACT) for _, likeliest in wanted
    ]


@pytest.mark.parametrize("fields", [{}, {"logprobs": 0}, {"logprobs": 1, "temperature": 0}])
def test_the_chosen_tokens_alone_need_no_logits(
    served: Served, base_url: str, fields: dict[str, Any]
) -> None:
    body = {"model": "m", "prompt": PROMPT, "max_tokens": 2, **fields}
    note = asked(served, answer(f"{base_url}/completions", body))
    assert not [name for name in (*note["inputs"], *note["outputs"]) if "logits" in name]


def test_a_client_that_leaves_frees_the_memory_for_the_next(served: Served, base_url: str) -> None:
    """Each of these may take all of it, so that they run one after the other."""
    body = {"model": "m", "prompt": PROMPT, "logprobs": 2, "max_tokens": 2044, "stream": True}
    url = f"{base_url}/completions"
    for _ in range(3):
        with httpx.stream("POST", url, json=body, timeout=60) as response:
            assert response.status_code == 200
    assert len(events(url, body)) > 1
