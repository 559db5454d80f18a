"""Direct requests to `preprocessing` and `postprocessing`."""

from __future__ import annotations

import httpx
import pytest


def prepare(server, text, *outputs, **words):
    inputs = {
        "QUERY": ("BYTES", [1, 1], [text]),
        "REQUEST_OUTPUT_LEN": ("INT32", [1, 1], [7]),
        **{name: ("BYTES", [1, len(each)], each) for name, each in words.items()},
    }
    return server.infer("preprocessing", inputs, *outputs)


def ids(server, text):
    return server.tokenizer.encode(text, add_special_tokens=False).ids


def test_a_prompt_becomes_tensors(native):
    outputs = prepare(native, "Größe")
    assert outputs == {
        "INPUT_ID": [1, *ids(native, "Größe")],
        "REQUEST_INPUT_LEN": [8 + 1],
        "REQUEST_OUTPUT_LEN": [7],
        "BAD_WORDS_IDS": [],
        "STOP_WORDS_IDS": [],
        "OUT_END_ID": [2],
        "OUT_PAD_ID": [2],
    }


def test_only_requested_outputs_are_returned(native):
    for _ in range(20):
        assert prepare(native, "x", "OUT_END_ID") == {"OUT_END_ID": [2]}
        assert prepare(native, "x", "REQUEST_INPUT_LEN").keys() == {"REQUEST_INPUT_LEN"}


def test_bos_comes_once(native):
    assert prepare(native, "<s>Hi")["INPUT_ID"][:2] != [1, 1]


def test_words_become_token_lists(native):
    outputs = prepare(native, "x", STOP_WORDS_DICT=["ab,c", "", "</s>"], BAD_WORDS_DICT=["d"])
    stop, special, bad, spaced = (ids(native, word) for word in ("ab,c", "</s>", "d", " d"))
    flat = stop + special
    assert outputs["STOP_WORDS_IDS"] == [*flat, len(stop), len(flat), *[-1] * (len(flat) - 2)]
    flat = bad + spaced
    assert outputs["BAD_WORDS_IDS"] == [*flat, len(bad), len(flat), *[-1] * (len(flat) - 2)]


@pytest.mark.parametrize("prompt", ["x", "is it only a"])
def test_a_stop_word_that_the_prompt_begins_stays_with_the_text(native, prompt):
    """Hide the word from the engine, which also matches across the end of the prompt."""
    word = "a b"
    known = prepare(native, prompt, STOP_WORDS_DICT=[word])["STOP_WORDS_IDS"]
    assert bool(known) == (prompt == "x")


def test_whole_answers_become_text(native):
    tokens = ids(native, "Größe 🤖")
    outputs = native.infer(
        "postprocessing",
        {
            "TOKENS_BATCH": ("INT32", [1, 2, len(tokens)], [*tokens, *tokens]),
            "SEQUENCE_LENGTH": ("INT32", [1, 2], [len(tokens), 3]),
        },
    )
    assert outputs == {"OUTPUT": ["Größe 🤖", "Gr"]}


def test_a_batch_of_prompts_is_refused(native):
    two = {
        "inputs": [
            {"name": "QUERY", "datatype": "BYTES", "shape": [2, 1], "data": ["a", "b"]},
            {"name": "REQUEST_OUTPUT_LEN", "datatype": "INT32", "shape": [2, 1], "data": [1, 1]},
        ]
    }
    answer = httpx.post(native.url("models/preprocessing/infer"), json=two, timeout=60)
    assert answer.status_code == 400
    assert "QUERY holds 2 texts; send one prompt per request." in answer.json()["error"]
