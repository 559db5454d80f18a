"""Exact text, whole characters, stop words, seeds."""

from __future__ import annotations

from trtllm_workbench.selftest.bench.bench import PROMPTS, Bench, expect, greedy_body
from trtllm_workbench.selftest.bench.calls import EVENTS, PREDICT
from trtllm_workbench.selftest.bench.results import CannotRun, FellShort, Held

_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
_WORD_CHARACTERS = 4
_LEAST_TEXT = 2 * _WORD_CHARACTERS
_ENGINE_TOKENS = 12


def exact_text(bench: Bench) -> Held:
    """Compare streamed text with the tokenizer's decoding of the same answer's ids."""
    for answer in bench.answers:
        decoded = bench.decode(answer.ids)
        for name, text in (("the text", answer.text), ("the joined pieces", answer.joined)):
            if text != decoded:
                raise FellShort(
                    f"{name} {text!r} of the ids {answer.ids} differ from the tokenizer's "
                    f"decoding, {decoded!r}"
                )
    tokens = sum(len(answer.ids) for answer in bench.answers)
    return Held(
        f"{len(bench.answers)} answers of {tokens} tokens equal the decoding of all ids",
        {"tokens": tokens},
    )


def whole_characters(bench: Bench) -> Held:
    """Look for U+FFFD anywhere but at the end of an answer that `max_tokens` cut."""
    for answer in bench.answers:
        text = answer.text.rstrip(_REPLACEMENT) if answer.cut_short else answer.text
        if (place := text.find(_REPLACEMENT)) >= 0:
            raise FellShort(
                f"the engine emits half characters: character {place} of its answer is U+FFFD "
                f"(ids {answer.ids[:16]}); check that engine and tokenizer belong together"
            )
    return Held("no U+FFFD inside an answer")


def forms_agree(bench: Bench) -> Held:
    """Compare the forms of predict with each other: pieces, events, one body."""
    for answer in bench.answers:
        streamed = bench.greedy(answer.prompt)
        events = expect(bench.api.post(PREDICT, greedy_body(answer.prompt), EVENTS)).events()
        last = events[-1]
        if "finish_reason" not in last:
            raise FellShort(f"the last event of the stream is {last}; it must end the answer")
        texts = {
            "streamed": streamed.text,
            "events": "".join(event.get("text", "") for event in events),
            "whole": bench.greedy(answer.prompt, stream=False).json()["text"],
            "/invocations": answer.text,
        }
        if len(set(texts.values())) > 1:
            raise FellShort(f"greedy answers to one prompt differ: {texts}")
    return Held("streamed, as events, whole and by /invocations: the same text")


def stop_words(bench: Bench) -> Held:
    """Let a word from the middle of an answer stop it."""
    whole = bench.greedy(stream=False).json()["text"]
    if len(whole) < _LEAST_TEXT:
        raise CannotRun(f"the answer, {whole!r}, is too short to be stopped")
    middle = len(whole) // 2
    word = whole[middle : middle + _WORD_CHARACTERS]
    expected = whole.partition(word)[0]
    for stream in (True, False):
        reply = bench.greedy(stop_words=[word], stream=stream)
        text = reply.text if stream else reply.json()["text"]
        if word in text:
            raise FellShort(f"stop_words {[word]} did not stop the answer {text!r}")
        if text != expected:
            raise FellShort(f"stop_words {[word]} left {text!r} instead of {expected!r}")
        if not stream and (reason := reply.json()["finish_reason"]) != "stop":
            raise FellShort(f"finish_reason is {reason!r} after a stop word; it must be 'stop'")
    return Held(f"the word {word!r} ends the answer just before it")


def engine_stop_words(bench: Bench) -> Held:
    """Give the engine itself a stop word and an end id."""
    ids = bench.direct.generate(bench.prompt_ids, _ENGINE_TOKENS).ids
    if len(ids) < _ENGINE_TOKENS:
        raise FellShort(
            f"the engine generated {len(ids)} of {_ENGINE_TOKENS} tokens although nothing ends it"
        )
    word = ids[_ENGINE_TOKENS // 2]
    place = ids.index(word)
    stopped = bench.direct.generate(bench.prompt_ids, _ENGINE_TOKENS, stop_words=[[word]]).ids
    if word not in stopped and len(stopped) == _ENGINE_TOKENS:
        raise CannotRun(f"the engine's greedy answers differ: {ids} and {stopped}")
    if word in stopped[:-1] or len(stopped) > place + 1:
        raise FellShort(
            f"the engine ignores stop_words_list: it generated {len(stopped)} tokens although id "
            f"{word} at place {place + 1} is a stop word; compare the tensor with the template"
        )
    ended = bench.direct.generate(bench.prompt_ids, _ENGINE_TOKENS, end_id=word).ids
    if word in ended or len(ended) > place:
        raise FellShort(
            f"the engine ignores end_id: it generated {len(ended)} tokens although id {word} at "
            f"place {place + 1} ends the answer"
        )
    return Held(f"ended after {len(stopped)} of {_ENGINE_TOKENS} tokens; by end_id, {len(ended)}")


def seeds(bench: Bench) -> Held:
    """Draw answers with equal and with different seeds."""

    def draw(seed: int) -> str:
        body = {"prompt": PROMPTS[0], "max_tokens": 12, "seed": seed, "temperature": 1.0}
        return expect(bench.api.post(PREDICT, {**body, "top_p": 1.0})).text

    drawn = [draw(seed) for seed in (1, 2, 3)]
    for seed, text in enumerate(drawn, 1):
        if (again := draw(seed)) != text:
            raise FellShort(f"seed {seed} gave {text!r} and then {again!r}")
    different = len(set(drawn))
    note = "" if different > 1 else "; the engine draws nothing"
    return Held(f"equal seeds, equal texts; 3 seeds, {different} texts{note}")
