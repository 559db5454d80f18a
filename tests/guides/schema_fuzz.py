"""Random schemas of the supported keywords: their grammars allow exactly the valid values.

    python -m tests.guides.schema_fuzz --schemas 10000 [--seed 1] [--engine FOLDER]

Writes answers by the grammar of each schema at random, and validates them with `jsonschema`. With
`--engine`, the CPU engine's library writes them, in the vocabulary of the model in the folder.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jsonschema import Draft202012Validator
from tests.guides.matching import END, VOCABULARY, XGRAMMAR, compiled, matching

from trtllm_truss.guides.guide import GuideFault, find_endless
from trtllm_truss.guides.json_schema import convert_schema
from trtllm_truss.requests import Guide

Schema = dict[str, Any]

PATTERNS = [
    *("^yes$|^no$", "yes|no", r"^C:\\[a-z]{2}$", '^say "[a-z]{1,3}"$', "^[^,]{1,4}$", r"^\W$"),
    *(r"\S", "^ab", "z$", "^(a|bc)*$", r"^[A-Z]{2}-\d{1,3}$", r"^\d+(\.\d+)?$", "^.{2,5}$"),
    *("a.b", r"^\s*$", "^[^a-y]+$", "^$", "^(?:x|yy)?z+$", r"^[\]\[\\^-]+$", "[é漢]", "^[\\w.-]+$"),
    *("^(?!a)b", r"^(a)\1$", "^x|y$", r"^\D$", "^S_", "_id$", "^[a-c]$", r"\n", '"'),
]
NAMES = ["a", "b", "ab", "S_x", "k_id", "Größe", 'q"', "n/m", "yes", ""]
_EOS = "<|im_end|>"
FORMATS = ["date", "time", "date-time", "email", "uuid", "ipv4", "ipv6", "hostname", "uri"]


def schema_of(chance: random.Random, depth: int = 0) -> Any:
    """A random schema."""
    kinds = [string, string, string, number, literal, simple]
    if depth < 3:
        kinds += [object_, object_, array, choice, reference, every]
    return chance.choice(kinds)(chance, depth)


def some(chance: random.Random, share: float = 0.4) -> bool:
    return chance.random() < share


def string(chance: random.Random, depth: int) -> Schema:
    schema: Schema = {"type": "string"}
    if some(chance, 0.6):
        schema["pattern"] = chance.choice(PATTERNS)
    if some(chance, 0.15):
        schema["format"] = chance.choice(FORMATS)
    if some(chance):
        schema["minLength"] = chance.randint(0, 4)
    if some(chance):
        schema["maxLength"] = chance.randint(0, 8)
    return schema


def number(chance: random.Random, depth: int) -> Schema:
    schema: Schema = {"type": chance.choice(["integer", "number"])}
    for name in ("minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum"):
        if some(chance, 0.3):
            schema[name] = chance.choice([-3, 0, 0.5, 1, 7, 12.25, 100])
    return schema


def literal(chance: random.Random, depth: int) -> Schema:
    values = [1, "a", "yes", None, True, 2.5, {"a": 1}, ["x"], 'q"', "C:\\ab"]
    if some(chance):
        return {"const": chance.choice(values)}
    schema: Schema = {"enum": chance.sample(values, chance.randint(1, 4))}
    if some(chance, 0.3):
        schema["type"] = chance.choice(["string", ["string", "null"], "integer"])
    if some(chance, 0.2):
        schema["pattern"] = chance.choice(PATTERNS)
    return schema


def simple(chance: random.Random, depth: int) -> Any:
    return chance.choice(
        [
            {"type": "boolean"},
            {"type": "null"},
            {"type": ["string", "null"], "maxLength": 3},
            {"type": ["integer", "string"], "minimum": 2, "pattern": "^a"},
            {},
            True,
        ]
    )


def object_(chance: random.Random, depth: int) -> Schema:
    schema: Schema = {"type": "object"}
    names = chance.sample(NAMES, chance.randint(0, 4))
    if names or some(chance):
        schema["properties"] = {name: schema_of(chance, depth + 1) for name in names}
    if some(chance, 0.6):
        schema["required"] = chance.sample(NAMES, 1) if some(chance, 0.1) else []
        schema["required"] += [
            name for name in names if some(chance) and name not in schema["required"]
        ]
    if some(chance, 0.3):
        schema["patternProperties"] = {
            pattern: schema_of(chance, depth + 1) for pattern in chance.sample(PATTERNS, 2)
        }
    if some(chance):
        schema["additionalProperties"] = chance.choice(
            [True, False, {}, schema_of(chance, depth + 1)]
        )
    if some(chance, 0.2):
        schema["minProperties"] = chance.randint(0, 3)
    if some(chance, 0.2):
        schema["maxProperties"] = chance.randint(0, 4)
    if some(chance, 0.15):
        schema["propertyNames"] = chance.choice(
            [{"pattern": chance.choice(PATTERNS)}, {"maxLength": 3}, {"enum": ["a", "b", "c"]}]
        )
    return schema


def array(chance: random.Random, depth: int) -> Schema:
    schema: Schema = {"type": "array"}
    if some(chance, 0.7):
        schema["items"] = schema_of(chance, depth + 1)
    if some(chance, 0.2):
        schema["prefixItems"] = [schema_of(chance, depth + 1) for _ in range(2)]
    if some(chance):
        schema["minItems"] = chance.randint(0, 3)
    if some(chance):
        schema["maxItems"] = chance.randint(0, 4)
    return schema


def choice(chance: random.Random, depth: int) -> Schema:
    keyword = chance.choice(["anyOf", "anyOf", "oneOf"])
    schema: Schema = {keyword: [schema_of(chance, depth + 1) for _ in range(2)]}
    if some(chance, 0.3):
        schema |= string(chance, depth) if some(chance) else object_(chance, 3)
    return schema


def reference(chance: random.Random, depth: int) -> Schema:
    schema: Schema = {"$ref": chance.choice(["#/$defs/a~1b", "#/$defs/c%20d", "#/$defs/list"])}
    if some(chance, 0.3):
        schema |= string(chance, depth) if some(chance) else {"type": "object", "minProperties": 1}
    return schema


def every(chance: random.Random, depth: int) -> Schema:
    return {"allOf": [schema_of(chance, depth + 1) for _ in range(chance.randint(1, 2))]}


def schemas(chance: random.Random) -> Iterator[Schema]:
    """Random schemas without end, each with definitions."""
    while True:
        schema = schema_of(chance)
        schema = dict(schema) if isinstance(schema, dict) else {}
        schema["$defs"] = {
            "a/b": schema_of(chance, 2),
            "c d": schema_of(chance, 3),
            "list": {
                "type": "object",
                "properties": {
                    "value": {"$ref": "#/$defs/a~1b"},
                    "next": {"anyOf": [{"$ref": "#/$defs/list"}, {"type": "null"}]},
                },
                "required": ["value", "next"],
            },
        }
        yield schema


def written(grammar: Any, chance: random.Random, longest: int = 120) -> str | None:
    """A text by a compiled grammar at random; None if it does not end."""
    follows = XGRAMMAR.GrammarMatcher(grammar, None, False, -1)
    mask = np.zeros((1, (len(VOCABULARY) + 31) // 32), np.int32)
    text = ""
    for number in range(longest):
        follows.fill_next_token_bitmask(mask, 0, False)
        bits = np.unpackbits(mask.view(np.uint8).ravel(), bitorder="little")[: len(VOCABULARY)]
        allowed = [int(place) for place in np.nonzero(bits)[0]]
        if not allowed:  # nothing of this vocabulary
            return None
        if END in allowed and (len(allowed) == 1 or chance.random() < 0.4):
            return text
        ends = [place for place in allowed if VOCABULARY[place] in '"}],:0']
        ascii_only = [place for place in allowed if 32 <= place < 127]
        if ends and chance.random() < (0.3 if number < longest // 2 else 0.9):
            allowed = ends
        elif ascii_only and chance.random() < 0.8:
            allowed = ascii_only
        token = chance.choice([each for each in allowed if each != END])
        assert follows.accept_token(token, False)
        text += VOCABULARY[token]
    return None


def mutated(value: Any, chance: random.Random) -> Any:
    """A value like another one: with a part changed or left out, in the same order."""
    if isinstance(value, dict) and value:
        name = chance.choice([*value])
        if some(chance):
            return {each: value[each] for each in value if each != name}
        return {
            each: mutated(value[each], chance) if each == name else value[each] for each in value
        }
    if isinstance(value, list) and value:
        place = chance.randrange(len(value))
        inner = [mutated(value[place], chance)] if some(chance, 0.6) else []
        return [*value[:place], *inner, *value[place + 1 :]]
    if isinstance(value, str) and some(chance, 0.8):
        place = chance.randint(0, len(value))
        inner = chance.choice(["", *'abcxyz019 _-S"\\,.[]^/'])
        return value[:place] + inner + value[place + chance.randint(0, 1) :]
    return chance.choice([None, True, 0, 1, 7, -3, 2.5, "", "a", "ab", "yes", 'q"', [], {}, ["x"]])


def is_plain(value: Any) -> bool:
    """Return whether a value has no text that ECMA 262 and Python read differently, and is JSON."""
    text = json.dumps(value)
    return not any(word in text for word in ("\\u", "\\n", "Infinity"))


def closed(schema: Any) -> Any:
    """A schema whose objects have no further members unless it says so."""
    if isinstance(schema, list):
        return [closed(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    copy = {
        key: value if key in ("const", "enum") else closed(value) for key, value in schema.items()
    }
    if copy.get("type") == "object" and "properties" in copy:
        copy.setdefault("additionalProperties", False)
    return copy


def is_listed(schema: Any) -> bool:
    """Return whether a schema has keywords with a narrower grammar, as listed in docs/openai.md."""
    text = json.dumps(schema)
    return any(f'"{name}"' in text for name in ("format", "prefixItems", "patternProperties"))


class Found(NamedTuple):
    """The answers by the grammar of a schema.

    Attributes:
        is_kept: the schema would not be refused.
        valid: the number of valid answers.
        others: the number of further valid answers that the grammar allows.
        wrong: an invalid answer, or a valid one that the grammar forbids.
    """

    is_kept: bool = True
    valid: int = 0
    others: int = 0
    wrong: str | None = None


def check(
    schema: Schema,
    texts: Callable[[str], Iterator[str]],
    chance: random.Random | None = None,
) -> Found:
    """Validate what `texts` writes by the grammar of a schema, and with `chance` similar ones."""
    text = json.dumps(schema)
    try:
        conversion = convert_schema(text, any_blanks=False)
    except (GuideFault, RecursionError):
        return Found(is_kept=False)
    if conversion.unkept or find_endless(Guide("ebnf_grammar", conversion.grammar)):
        return Found(is_kept=False)
    validator = Draft202012Validator(schema)
    fits = None if chance is None or is_listed(schema) else matching(conversion.grammar)
    narrow = Draft202012Validator(closed(schema))
    valid = others = 0
    for answer in texts(conversion.grammar):
        try:
            value = json.loads(answer)
        except ValueError:
            return Found(valid=valid, wrong=f"no JSON: {answer}")
        if not validator.is_valid(value):
            return Found(valid=valid, wrong=f"invalid: {answer}")
        valid += 1
        if fits is None or chance is None:
            continue
        for _ in range(5):
            value = mutated(value, chance)
            if is_plain(value) and validator.is_valid(value) and narrow.is_valid(value):
                others += 1
                if not fits(like := json.dumps(value, ensure_ascii=False)):
                    return Found(valid=valid, others=others, wrong=f"forbidden: {like}")
    return Found(valid=valid, others=others)


def by_xgrammar(chance: random.Random, count: int) -> Callable[[str], Iterator[str]]:
    def texts(grammar: str) -> Iterator[str]:
        ready = compiled(grammar)
        for _ in range(count):
            answer = written(ready, chance)
            if answer is not None:
                yield answer

    return texts


def by_engine(folder: Path, count: int) -> Callable[[str], Iterator[str]]:
    """Texts by OpenVINO GenAI's XGrammar, with random tokens of a model's vocabulary."""
    from trtllm_backends.openvino_genai.guide_compiler import (
        GuideCompiler,
        find_model,
        load_vocabulary,
    )

    files = find_model(folder)
    vocabulary = load_vocabulary(files.path)
    compiler = GuideCompiler(vocabulary, files.vocab_size)

    def texts(grammar: str) -> Iterator[str]:
        for _ in range(count):
            result = compiler._generate(Guide("ebnf_grammar", grammar), 80, at_random=True)
            answer = vocabulary.decode(result.tokens[0], skip_special_tokens=False)
            if answer.endswith(_EOS) and "\ufffd" not in answer:  # halves of characters
                yield answer.removesuffix(_EOS)

    return texts


def main() -> int:
    options = argparse.ArgumentParser(description="Compare grammars of schemas with jsonschema.")
    options.add_argument("--schemas", type=int, default=10_000, help="that are kept")
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--answers", type=int, default=5, help="of each schema")
    options.add_argument("--engine", type=Path, help="the CPU engine's folder")
    given = options.parse_args()
    chance = random.Random(given.seed)
    texts = by_engine(given.engine, given.answers) if given.engine else None
    texts = texts or by_xgrammar(chance, given.answers)
    found: list[Found] = []
    for schema in schemas(chance):
        if sum(each.is_kept for each in found) == given.schemas:
            break
        found.append(check(schema, texts, None if given.engine else chance))
        if found[-1].wrong:
            sys.stdout.write(f"{found[-1].wrong} by {json.dumps(schema)}\n")
            sys.stdout.flush()
            if sum(bool(each.wrong) for each in found) == 10:
                break
    kept = [each for each in found if each.is_kept]
    wrong = sum(bool(each.wrong) for each in found)
    sys.stdout.write(
        f"{len(kept)} schemas kept, {len(found) - len(kept)} refused; "
        f"{sum(each.valid for each in found)} answers valid, "
        f"{sum(each.others for each in found)} like them allowed, {wrong} wrong\n"
    )
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
