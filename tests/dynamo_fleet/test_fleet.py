"""NVIDIA Dynamo's frontend, its own, before two workers of ours with real models."""

from __future__ import annotations

import json
import secrets
import signal
import subprocess
import threading
from pathlib import Path
from typing import Any

import pytest
from benchmarks.servers.dynamo import MODEL, Fleet
from tests.dynamo_fleet.conftest import config_with
from tests.support.waiting import settles

HELLO = [{"role": "user", "content": "What is the capital of France?"}]
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 9},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}
TOOL = {"type": "function", "function": {"name": "add_person", "parameters": PERSON}}


def chat(fleet: Fleet, **fields: Any) -> Any:
    body = {"model": MODEL, "messages": HELLO, "max_tokens": 60, **fields}
    answer = fleet.client.post("/v1/chat/completions", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def streamed(fleet: Fleet, **fields: Any) -> tuple[str, Any]:
    """Return the text and the last finish reason of a stream; fail for an error in it."""
    body = {"model": MODEL, "messages": HELLO, "stream": True, **fields}
    text, reason = "", None
    with fleet.client.stream("POST", "/v1/chat/completions", json=body) as answer:
        assert answer.status_code == 200, answer.read()
        for line in answer.iter_lines():
            assert not line.startswith("event: error"), line
            if line.startswith("data: {"):
                event = json.loads(line.removeprefix("data: "))
                assert "error" not in event, event
                for choice in event["choices"]:
                    text += choice["delta"].get("content") or ""
                    reason = choice["finish_reason"] or reason
    return text, reason


def test_chat(fleet: Fleet) -> None:
    answer = chat(fleet)
    assert "Paris" in answer["choices"][0]["message"]["content"]
    assert answer["choices"][0]["finish_reason"] == "stop"
    usage = answer["usage"]
    assert usage["completion_tokens"] < 60
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]


def test_stream(fleet: Fleet) -> None:
    text, reason = streamed(fleet, max_tokens=5)
    assert text
    assert reason == "length"


def test_a_second_turn_uses_the_cache(fleet: Fleet) -> None:
    long = [{"role": "user", "content": "Count the words: " + "one two three " * 100}]
    chat(fleet, messages=long, max_tokens=4)
    again = chat(fleet, messages=long, max_tokens=4)["usage"]
    assert again["prompt_tokens_details"]["cached_tokens"] > 200


def test_a_schema(fleet: Fleet) -> None:
    schema = {"name": "person", "schema": PERSON}
    answer = chat(fleet, response_format={"type": "json_schema", "json_schema": schema})
    person = json.loads(answer["choices"][0]["message"]["content"])
    assert set(person) == {"name", "age"}


def test_a_named_tool(fleet: Fleet) -> None:
    choice = {"type": "function", "function": {"name": "add_person"}}
    answer = chat(fleet, tools=[TOOL], tool_choice=choice)
    (call,) = answer["choices"][0]["message"]["tool_calls"]
    assert call["function"]["name"] == "add_person"
    assert set(json.loads(call["function"]["arguments"])) == {"name", "age"}


def test_responses_and_messages(fleet: Fleet) -> None:
    body = {"model": MODEL, "input": "What is the capital of France?", "max_output_tokens": 60}
    answer = fleet.client.post("/v1/responses", json=body)
    assert answer.status_code == 200, answer.text
    assert "Paris" in answer.text
    body = {"model": MODEL, "messages": HELLO, "max_tokens": 60}
    answer = fleet.client.post("/v1/messages", json=body)
    assert answer.status_code == 200, answer.text
    assert "Paris" in answer.text


def test_log_probabilities_are_those_of_the_tokens(fleet: Fleet) -> None:
    answer = chat(fleet, logprobs=True, max_tokens=5)["choices"][0]
    content = answer["logprobs"]["content"]
    assert "".join(each["token"] for each in content) == answer["message"]["content"]
    assert all(each["logprob"] <= 0 for each in content)


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"n": 2, "temperature": 1.0}, "n is 2"),
        ({"max_tokens": 9000}, "maximum context length is 8192"),
    ],
)
def test_a_refusal_has_our_words(fleet: Fleet, fields: dict[str, Any], named: str) -> None:
    body = {"model": MODEL, "messages": HELLO, "max_tokens": 5, **fields}
    answer = fleet.client.post("/v1/chat/completions", json=body)
    assert answer.status_code == 400
    assert named in answer.json()["message"]


def test_leaving_ends_the_answer_in_the_engine(fleet: Fleet) -> None:
    before = fleet.log.count("status=cancelled")
    body = {"model": MODEL, "messages": HELLO, "stream": True, "max_tokens": 6000}
    body["ignore_eos"] = True
    with fleet.client.stream("POST", "/v1/chat/completions", json=body) as answer:
        next(line for line in answer.iter_lines() if "content" in line)
    assert settles(lambda: fleet.log.count("status=cancelled") == before + 1)


def test_a_failed_start_names_its_cause(tmp_path: Path) -> None:
    config = config_with(tmp_path, serving={"start_timeout_s": 0.1})
    fleet = Fleet(tmp_path)
    try:
        worker = fleet.add_worker(config)
        assert worker.wait(60) == 1
        log = fleet.log_of(worker)
        assert "\nerror: Triton was not ready after 0.1 s" in log
        assert "Traceback" not in log
        worker = fleet.add_worker(config, DYN_REQUEST_PLANE="telegraph")
        assert worker.wait(60) == 1
        log = fleet.log_of(worker)
        assert "error: Dynamo's runtime failed" in log
        assert "Invalid request plane mode: 'telegraph'" in log
        assert "Traceback" not in log
    finally:
        fleet.close()


def test_overload_is_no_error_while_one_worker_has_room(tmp_path: Path) -> None:
    config = config_with(tmp_path, {"max_batch_size": 1}, {"queue_limit": 0})
    fleet = Fleet(tmp_path)
    try:
        fleet.add_worker(config)
        fleet.add_worker(config)
        fleet.wait_for(2)
        results = run_streams(fleet, 2, max_tokens=64, ignore_eos=True)
        assert [reason for _, reason in results] == ["length"] * 2
        # More than all places, and there is no queue.
        body = {"model": MODEL, "messages": HELLO, "max_tokens": 100, "ignore_eos": True}
        statuses: list[int] = []

        def ask() -> None:
            statuses.append(fleet.client.post("/v1/chat/completions", json=body).status_code)

        threads = [threading.Thread(target=ask) for _ in range(12)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert set(statuses) == {200, 503}
        chat(fleet)
    finally:
        fleet.close()


def answered(fleet: Fleet) -> list[int]:
    return [fleet.log_of(worker).count("status=finished") for worker in fleet.alive]


def wait_until_used(fleet: Fleet, count: int) -> None:
    """Wait until so many workers answer: the router learns of one after the frontend's health."""
    fleet.wait_for(count)
    before = answered(fleet)

    def is_used() -> bool:
        run_streams(fleet, 4, max_tokens=4)
        return all(now > then for now, then in zip(answered(fleet), before, strict=True))

    assert settles(is_used), fleet.log


def run_streams(fleet: Fleet, count: int, **fields: Any) -> list[tuple[str, Any]]:
    """Run streams of different first tokens at once, which the router spreads; raise any error."""
    results: list[tuple[str, Any]] = []
    errors: list[BaseException] = []

    def run(number: int) -> None:
        system = {"role": "system", "content": f"{number} is the room of {secrets.token_hex(8)}."}
        asked = [system, {"role": "user", "content": f"Count from {number} on."}]
        try:
            results.append(streamed(fleet, messages=asked, **fields))
        except BaseException as error:  # noqa: BLE001 - reraised
            errors.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return results


@pytest.mark.parametrize("victim", ["worker", "triton"])
def test_kill_9_is_invisible_to_plain_streams(
    fleet: Fleet, config: Path, victim: str, pytestconfig: pytest.Config
) -> None:
    for number in range(max(1, pytestconfig.getoption("--rounds"))):
        wait_until_used(fleet, 2)
        worker = fleet.alive[number % 2]
        pid = worker.pid if victim == "worker" else fleet.triton_of(worker)
        killer = threading.Timer(0.7, subprocess.run, [["kill", "-9", str(pid)]])
        killer.start()
        results = run_streams(fleet, 4, max_tokens=160, ignore_eos=True)
        killer.join()
        assert [reason for _, reason in results] == ["length"] * 4, f"round {number}"
        if victim == "worker":
            assert worker.wait(30) == -signal.SIGKILL
            fleet.add_worker(config)


def test_sigterm_lets_streams_end(fleet: Fleet, config: Path) -> None:
    worker = fleet.add_worker(config)
    wait_until_used(fleet, 3)
    stop = threading.Timer(0.7, worker.send_signal, [signal.SIGTERM])
    stop.start()
    results = run_streams(fleet, 6, max_tokens=160, ignore_eos=True)
    stop.join()
    assert [reason for _, reason in results] == ["length"] * 6
    assert worker.wait(60) == 0
    fleet.wait_for(2)
