r"""Convert JSON schemas to grammars in XGrammar's EBNF.

XGrammar converts schemas itself, but 0.1.21 to 0.1.32 get many wrong: a `pattern` with an
alternation, a quote or a backslash gives text that is not JSON, one without anchors counts as
anchored, lengths next to it have no effect, keys of `patternProperties` replace those of
`properties`, bounds of numbers are wrong, strings with a length may contain control characters but
no escapes, and references with escapes are refused. It silently drops other keywords. So every
engine gets a grammar of ours, whose rules have the shapes of XGrammar's own where these are
correct, at the same cost.

A grammar is narrower than its schema where JSON has several ways to write a value, and in the cases
listed in docs/openai.md. It is wider only by the keywords in `Conversion.unkept`.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from trtllm_truss.guides.guide import PAIR, GuideFault
from trtllm_truss.guides.number_ranges import write_number
from trtllm_truss.guides.patterns import (
    ANY_TEXT,
    FORMATS,
    Lengths,
    Matching,
    Node,
    NoneOf,
    TooManyStates,
    Unsupported,
    can_count,
    matches,
    node_of_texts,
    parse_pattern,
    repeated_class,
    run_together,
    write_anchored,
    write_automaton,
    write_chars,
    write_without_escapes,
)
from trtllm_truss.guides.schema_parts import (
    CHOICES,
    COUNTS_OF_ARRAYS,
    COUNTS_OF_OBJECTS,
    KEYWORDS,
    OF_NUMBERS,
    OF_OBJECTS,
    OF_STRINGS,
    OF_VALUES,
    UNEVALUATED,
    WITHOUT_EFFECT,
    References,
    Schema,
    are_equal,
    conditions,
    counts_of,
    kind_of,
    mapping,
    names_of,
    patterns_of,
    shown,
    types_of,
    types_of_value,
    values_of,
)

_INLINE_CHARACTERS, _TYPE_CHARACTERS = 40, 100

_REST = "basic_string_sub"
_HEX = "[0-9a-fA-F]"
_RULES = {
    "basic_escape": r'["\\/bfnrt] | "u" [A-Fa-f0-9] [A-Fa-f0-9] [A-Fa-f0-9] [A-Fa-f0-9]',
    _REST: r'("\"" | [^\0-\x1f\"\\\r\n] basic_string_sub | "\\" basic_escape basic_string_sub) '
    r"(= [ \n\t]* [,}\]:])",
    "basic_any": "basic_number | basic_string | basic_boolean | basic_null | basic_array "
    "| basic_object",
    "basic_integer": '("0" | "-"? [1-9] [0-9]*)',
    "basic_number": '"-"? ("0" | [1-9] [0-9]*) ("." [0-9]+)? ([eE] [+-]? [0-9]+)?',
    "basic_string": '["] basic_string_sub',
    "basic_boolean": '"true" | "false"',
    "basic_null": '"null"',
    "basic_array": '(("[" BLANKS basic_any (COMMA basic_any)* BLANKS "]") | ("[" BLANKS "]"))',
    "basic_object": '("{" BLANKS basic_string COLON basic_any (COMMA basic_string COLON '
    'basic_any)* BLANKS "}") | "{" BLANKS "}"',
    # Two rules: XGrammar expands one that an alternative starts with and that refers to no other.
    "comma_before_key": '(BLANKS "," blanks_before_key) (= ["])',
    "blanks_before_key": '(AFTER_COMMA) (= ["])',
    # One character, never a lone surrogate.
    "string_escape": rf'["\\/bfnrt] | "u" ([0-9a-cA-CefEF] {_HEX} | [dD] [0-7]) {_HEX} {_HEX}',
}
_NEEDED = {
    _REST: ("basic_escape",),
    "basic_string": (_REST,),
    "comma_before_key": ("blanks_before_key",),
    "basic_array": ("basic_any",),
    "basic_object": ("basic_string", "basic_any"),
    "basic_any": (
        *("basic_number", "basic_string", "basic_boolean", "basic_null", "basic_array"),
        "basic_object",
    ),
}
_BLANKS = r"[ \n\t]*"
_MAX_CHAIN = 128
"""Maximum characters of a string with a length that may contain escapes: each takes a rule.

Above this, a class is counted, which cannot contain escapes: XGrammar 0.1.32 takes 15 s to compile
a counted choice of a class and escapes, and 0.3 s per generated token (49,152 tokens).
"""

_BLOCK = 32
"""Size in characters of the smallest block of long strings.

With 16, recompiling takes half the time, but generating takes as much longer.
"""


class Conversion(NamedTuple):
    """A schema as a grammar.

    Attributes:
        grammar: XGrammar's EBNF; the first rule is `root`.
        unkept: keywords that have no effect in it.
    """

    grammar: str
    unkept: tuple[str, ...]


def convert_schema(schema: str, *, any_blanks: bool) -> Conversion:
    """Convert a schema.

    Args:
        schema: JSON.
        any_blanks: allow blanks between the parts of the output, instead of one after each comma
            and colon.

    Raises:
        GuideFault: the schema is malformed, or no text fits it.
        ValueError: it is not JSON.
    """
    return _Converter(json.loads(schema), any_blanks).convert()


class _Impossible(Exception):
    """No value fits a part of the schema; the message gives the reason."""


class _Converter:
    def __init__(self, root: Any, any_blanks: bool) -> None:
        self._root = root
        self.references = References(root)
        self._rules: dict[str, str] = {}
        self._pointers: dict[str, str] = {}
        self._texts: dict[Any, str | None] = {}
        self._unkept: dict[str, None] = {}
        self._blanks = _BLANKS if any_blanks else ""
        self._comma = f'{_BLANKS} "," {_BLANKS}' if any_blanks else '", "'
        self._colon = f'{_BLANKS} ":" {_BLANKS}' if any_blanks else '": "'

    def convert(self) -> Conversion:
        self._rules["root"] = self._pointers["#"] = "root"
        try:
            self._rules["root"] = self._value(self._root, "root")
        except _Impossible as why:
            raise GuideFault(f"no text fits it: {why}.") from None
        rules = (f"{name} ::= {body}" for name, body in self._rules.items())
        return Conversion("\n".join(rules) + "\n", tuple(self._unkept))

    def _basic(self, name: str) -> str:
        """Return the name of a common rule, adding it with the rules that it needs."""
        if name not in self._rules:
            body = _RULES[name].replace("AFTER_COMMA", self._blanks or '" "')
            body = body.replace("BLANKS", self._blanks)
            self._rules[name] = body.replace("COMMA", self._comma).replace("COLON", self._colon)
            for each in _NEEDED.get(name, ()):
                self._basic(each)
        return name

    def _rule(self, name: str, body: str) -> str:
        """Add a rule; return its name, or a short body itself."""
        if len(body) <= _INLINE_CHARACTERS and "|" not in body:
            return body
        return self._named_rule(name, body)

    def _named_rule(self, name: str, body: str) -> str:
        while name in self._rules:
            name += "_"
        self._rules[name] = body
        return name

    def _note(self, keyword: str) -> None:
        self._unkept[keyword] = None

    def _value(self, schema: Any, name: str) -> str:
        """Return the grammar of a schema's values.

        Raises:
            _Impossible: there are none.
        """
        if schema is True:
            return self._basic("basic_any")
        if schema is False:
            raise _Impossible("false allows no value")
        if not isinstance(schema, Mapping):
            raise GuideFault(f"its part {shown(schema)} is not a schema; send an object.")
        for keyword in WITHOUT_EFFECT:
            if schema.get(keyword, False) is not False:
                self._note(keyword)
        if "const" in schema:
            values = schema.get("enum", [schema["const"]])
            is_named = not isinstance(values, list) or any(
                are_equal(schema["const"], each) for each in values
            )
            return self._literals([schema["const"]] if is_named else [], schema, "const")
        if "enum" in schema:
            values = schema["enum"]
            if not isinstance(values, list):
                raise GuideFault(f"its enum is {shown(values)}; send a list.")
            return self._literals(values, schema, "enum")
        if choice := next((key for key in CHOICES if key in schema), None):
            return self._choice(schema, choice, name)
        return self._typed(schema, name)

    def _choices(self, schemas: Sequence[Any], name: str) -> str:
        found, whys = [], []
        for number, each in enumerate(schemas):
            try:
                body = self._value(each, f"{name}_case_{number}")
            except _Impossible as why:
                whys.append(str(why))
            else:
                found.append(self._rule(f"{name}_case_{number}", body))
        if not found:
            raise _Impossible(whys[0] if whys else "it has no choices")
        return " | ".join(dict.fromkeys(found))

    def _choice(self, schema: Schema, keyword: str, name: str) -> str:
        """Follow a reference or one of several schemas, together with the keywords next to it."""
        beside = {key: schema[key] for key in schema if key in (*OF_VALUES, *CHOICES)}
        target = beside.pop(keyword)
        unevaluated = {key: beside.pop(key) for key in UNEVALUATED if key in beside}
        if keyword == "$ref":
            if not beside and not unevaluated:
                return self._reference(target)
            parts = [self.references.resolve(target)]
        else:
            if not isinstance(target, list):
                raise GuideFault(f"its {keyword} is {shown(target)}; send a list.")
            parts = target
        if keyword == "oneOf" and not self.references.are_disjoint(parts):
            self._note("oneOf with choices that overlap")
        if keyword in ("anyOf", "oneOf"):
            if not beside and not unevaluated:
                return self._choices(parts, name)
            merged = [self.references.merged([beside, part], unevaluated) for part in parts]
            if None not in merged:
                return self._choices(merged, name)
            self._note(f"{next(iter({**beside, **unevaluated}))} beside {keyword}")
            return self._choices(parts, name)
        whole = self.references.merged([beside, *parts], unevaluated)
        if whole is not None:
            return self._value(whole, name)
        self._note(f"{next(iter(beside))} beside {keyword}" if beside else keyword)
        if not parts:
            return self._basic("basic_any")
        return self._value(parts[0], name)

    def _reference(self, pointer: Any) -> str:
        if pointer not in self._pointers:
            target = self.references.resolve(pointer)
            rule = self._pointers[pointer] = f"ref_{len(self._pointers)}"
            self._rules[rule] = ""
            try:
                self._rules[rule] = self._value(target, rule)
            except _Impossible:
                del self._rules[rule], self._pointers[pointer]
                raise
        return self._pointers[pointer]

    def _literals(self, values: Sequence[Any], schema: Schema, keyword: str) -> str:
        beside = {key: schema[key] for key in schema if key in (*OF_VALUES, *CHOICES)}
        kept = [value for value in values if self._value_fits(value, beside, keyword)]
        if not kept:
            raise _Impossible(f"no value of {keyword} fits the keywords next to it")
        return " | ".join(dict.fromkeys(map(self._constant, kept)))

    def _constant(self, value: Any) -> str:
        if isinstance(value, list | dict) and value:
            is_list = isinstance(value, list)
            members = [
                self._constant(each)
                if is_list
                else f"{self._constant(each)} {self._colon} {self._constant(value[each])}"
                for each in value
            ]
            begin, end = "[]" if is_list else "{}"
            inner = f" {self._comma} ".join(members)
            return f'"{begin}" {self._blanks} {inner} {self._blanks} "{end}"'
        return write_literal(json.dumps(value, ensure_ascii=False))

    def _value_fits(self, value: Any, beside: Schema, keyword: str) -> bool:
        """Return True if a value of `enum` or `const` fits the keywords next to it."""
        if "type" in beside and not types_of(beside) & types_of_value(value):
            return False
        for key in beside:
            fits = self._keyword_fits(value, key, beside[key])
            if fits is False:
                return False
            if fits is None:
                self._note(f"{key} beside {keyword}")
        return True

    def _keyword_fits(self, value: Any, key: str, wanted: Any) -> bool | None:
        """Return True if a value fits a keyword; None if the keyword is unknown."""
        if key == "type":
            return True
        kind = next((kind for kind, keys in KEYWORDS.items() if key in keys), None)
        if kind is None:
            return None
        if kind_of(value) != kind:
            return True
        number = isinstance(wanted, int | float) and not isinstance(wanted, bool)
        if kind == "number" and number:
            return bool(_COMPARED[key](value, wanted))
        if key in ("minLength", "maxLength") and number:
            return bool(len(value) >= wanted if key == "minLength" else len(value) <= wanted)
        if key == "pattern":
            return all(self._found(value, each) for each in patterns_of(wanted))
        if key == "format":
            return wanted not in FORMATS or self._found(value, FORMATS[wanted])
        return None

    def _found(self, value: str, pattern: str) -> bool:
        try:
            return matches(parse_pattern(pattern), value)
        except (Unsupported, TooManyStates):
            self._note(f"pattern {shown(pattern)} beside enum or const")
            return True

    def _typed(self, schema: Schema, name: str) -> str:
        types = schema.get("type")
        if isinstance(types, list):
            if len(types) != 1:
                return self._choices([{**schema, "type": each} for each in types], name)
            types = types[0]
        types = _implied_type(schema) if types is None else types
        match types:
            case None:
                return self._basic("basic_any")
            case "string":
                return self._string(schema, name)
            case "array":
                return self._array(schema, name)
            case "object":
                return self._object(schema, name)
            case "integer" | "number" if not schema.keys().isdisjoint(OF_NUMBERS):
                return write_number(schema, is_integer=types == "integer")
            case "integer" | "number" | "boolean" | "null":
                return self._basic(f"basic_{types}")
        raise GuideFault(f'Unsupported type "{str(types)[:_TYPE_CHARACTERS]}"')

    def _string(self, schema: Schema, name: str) -> str:
        nodes = []
        for pattern in patterns_of(schema.get("pattern", ())):
            nodes += self._parsed(pattern)
        form = schema.get("format")
        if isinstance(form, str) and form in FORMATS:
            nodes += self._parsed(FORMATS[form])
        least, most = counts_of(schema, "minLength", "maxLength")
        text = self._text(name, tuple(nodes), least, most)
        if text is None:
            beside = [key for key in OF_STRINGS if key in schema]
            raise _Impossible(f"no string fits its {' and its '.join(beside)}")
        return text

    def _parsed(self, pattern: Any) -> list[Node]:
        if not isinstance(pattern, str):
            raise GuideFault(f"its pattern is {shown(pattern)}; send a regular expression.")
        try:
            return [parse_pattern(pattern)]
        except Unsupported as what:
            self._note(f"pattern {shown(pattern)} (it has {what})")
        except TooManyStates:
            self._note(f"pattern {shown(pattern)} (it is too large)")
        return []

    def _text(
        self,
        name: str,
        nodes: tuple[Node, ...],
        least: int = 0,
        most: int | None = None,
        names: Collection[str] = (),
        absent: tuple[Node, ...] = (),
    ) -> str | None:
        """Return the grammar of a string; None if there is none.

        Args:
            nodes: expressions that match it.
            least: minimum number of characters.
            most: maximum number of characters.
            names: texts that it must not be.
            absent: expressions that must not match it.
        """
        key = repr((nodes, least, most, sorted(names), absent))
        if key not in self._texts:
            self._texts[key] = self._new_text(name, nodes, least, most, names, absent)
        return self._texts[key]

    def _new_text(
        self,
        name: str,
        nodes: tuple[Node, ...],
        least: int,
        most: int | None,
        names: Collection[str],
        absent: tuple[Node, ...],
    ) -> str | None:
        if most is not None and least > most:
            return None
        if not names and not absent:
            if not nodes and not least and most is None:
                return self._basic("basic_string")
            found = repeated_class(nodes[0] if nodes else ANY_TEXT) if len(nodes) < 2 else None
            if found and (counted := _counted(*found, least, most)):
                chars, least, most = counted
                if most is None or most <= _MAX_CHAIN:
                    return f'"\\"" {chars}{_count(least, most)} "\\""'
                return f'"\\"" {self._long(chars, least, most)}'
        has_lengths = bool(least) or most is not None
        is_single = len(nodes) == 1 and not (has_lengths or names or absent)
        if is_single and (written := write_anchored(nodes[0])):
            return f'"\\"" ({written}) "\\""'
        parts = [
            *(Matching(node) for node in nodes),
            *(Matching(node, is_negated=True) for node in absent),
            *([NoneOf(names)] if names else []),
            *([Lengths(least, most)] if has_lengths else []),
        ]
        try:
            automaton = run_together(parts)
        except TooManyStates:
            if is_single and (written := write_without_escapes(nodes[0])):
                return f'"\\"" ({written}) "\\""'
            return self._without_a_part(name, nodes, least, most, names, absent)
        if automaton is None:
            return None
        base = f"{name}_text_{len(self._texts)}"
        escape, rest = self._basic("string_escape"), self._basic(_REST)
        self._rules.update(write_automaton(automaton, base, rest, escape))
        return f'"\\"" {base}'

    def _long(self, chars: str, least: int, most: int) -> str:
        """Return the grammar of so many characters and the quote, as blocks of characters.

        XGrammar 0.1.32 takes 4.5 s for a count above 128, and 26 kB per state; blocks take 2 s, and
        all strings of the schema share them (49,152 tokens).
        """
        parts = [self._block(chars, size) for size in _powers(least)]
        few = least % _BLOCK
        parts += [f"{chars}{{{few},{few}}}"] if few else []
        return " ".join((*parts, self._at_most(chars, most - least)))

    def _block(self, chars: str, size: int) -> str:
        """Return the rule for so many characters: `_BLOCK`, or two blocks of half the size."""
        if size == _BLOCK:
            body = " ".join([chars] * size)
        else:
            half = self._block(chars, size // 2)
            body = f"{half} {half}"
        return self._shared_rule(("block", chars, size), f"chars_{size}", body)

    def _at_most(self, chars: str, most: int) -> str:
        """Return the rule for at most so many characters and the quote."""
        name = f"chars_to_{most}"
        if most < _BLOCK:
            body = f'"\\"" | {chars} {self._at_most(chars, most - 1)}' if most else '"\\""'
        else:
            size = _powers(most)[0]
            block = self._block(chars, size)
            body = f"{self._at_most(chars, size - 1)} | {block} {self._at_most(chars, most - size)}"
        return self._shared_rule(("at most", chars, most), name, body)

    def _shared_rule(self, key: tuple[Any, ...], name: str, body: str) -> str:
        """Return the name of a rule that several strings share, adding it once."""
        if (known := self._texts.get(key)) is None:
            known = self._texts[key] = self._named_rule(name, body)
        return known

    def _without_a_part(
        self,
        name: str,
        nodes: tuple[Node, ...],
        least: int,
        most: int | None,
        names: Collection[str],
        absent: tuple[Node, ...],
    ) -> str | None:
        """Drop a condition of a string whose automaton would be too large."""
        if least or most is not None:
            self._note(f"{'maxLength' if most is not None else 'minLength'} beside such a pattern")
            return self._text(name, nodes, names=names, absent=absent)
        if absent or names:
            self._note("patternProperties of such patterns")
            return self._text(name, nodes)
        self._note("a pattern that is too large" if len(nodes) == 1 else "format beside pattern")
        return self._text(name, nodes[:-1])

    def _array(self, schema: Schema, name: str) -> str:
        first = schema.get("prefixItems", [])
        items = schema.get("items", schema.get("unevaluatedItems"))
        if isinstance(items, list):  # before draft 2020-12
            first, items = items, schema.get("additionalItems")
        if not isinstance(first, list):
            raise GuideFault(f"its prefixItems is {shown(first)}; send a list.")
        least, most = counts_of(schema, *COUNTS_OF_ARRAYS)
        if most is not None and least > most:
            raise _Impossible(f"minItems {least} is above maxItems {most}")
        if not first and items is None and not least and most is None:
            return self._basic("basic_array")
        if items is None and not first:
            items = True
        first = first[:most]
        values = [self._member(each, f"{name}_item_{n}") for n, each in enumerate(first)]
        try:
            rest = None if items is None else self._member(items, f"{name}_items")
        except _Impossible:
            rest = None
        least = max(0, least - len(values))
        most = None if most is None else most - len(values)
        if rest is None and least:
            raise _Impossible("minItems is above the possible number of items")
        listed = self._listed(rest, least, most, bool(values)) if rest else '""'
        parts = f" {self._comma} ".join(values)
        full = f'"[" {self._blanks} {parts} {listed} {self._blanks} "]"'
        if values or least:
            return full
        empty = f'"[" {self._blanks} "]"'
        return empty if listed == '""' else f"({full}) | ({empty})"

    def _member(self, schema: Any, name: str) -> str:
        return self._rule(name, self._value(schema, name))

    def _listed(self, item: str, least: int, most: int | None, has_before: bool) -> str:
        """Return the grammar of a list, without the empty one if no item precedes it."""
        if most == 0:
            return '""'
        if has_before:
            return f"({self._comma} {item}){_count(least, most)}"
        rest = None if most is None else most - 1
        more = "" if rest == 0 else f" ({self._comma} {item}){_count(max(0, least - 1), rest)}"
        return f"{item}{more}"

    def _object(self, schema: Schema, name: str) -> str:
        if schema.keys().isdisjoint((*OF_OBJECTS, *COUNTS_OF_OBJECTS)):
            return self._basic("basic_object")
        return _Object(self, schema, name).write()


class _Object:
    """Writes the grammar of an object: named members in order, then further ones.

    A rule represents the members from one position on, after so many others.
    """

    def __init__(self, converter: _Converter, schema: Schema, name: str) -> None:
        self._to = converter
        self._name = name
        self._least, self._most = counts_of(schema, *COUNTS_OF_OBJECTS)
        if self._most is not None and self._least > self._most:
            raise _Impossible(f"minProperties {self._least} is above maxProperties {self._most}")
        self._named = dict(mapping(schema, "properties"))
        self._patterns = {
            pattern: (node, each)
            for pattern, each in mapping(schema, "patternProperties").items()
            for node in converter._parsed(pattern)
        }
        if len(self._patterns) < len(mapping(schema, "patternProperties")):
            self._patterns = {}
        self._required = names_of(schema, "required")
        self._names_nodes, self._least_name, self._most_name = self._read_names(schema)
        given = schema.get("additionalProperties", schema.get("unevaluatedProperties"))
        is_open = "properties" not in schema and "patternProperties" not in schema
        self._further = is_open if given is None else given
        self._add_required(True if given is None else given)
        self._apply_patterns()
        self._pairs: list[tuple[str, str, bool]] = []
        self._tails: dict[tuple[int, int], str | None] = {}
        self._parts: dict[tuple[int, int], str] = {}
        self._optional: dict[int, str] = {}

    def _read_names(self, schema: Schema) -> tuple[tuple[Node, ...], int, int | None]:
        names = schema.get("propertyNames", True)
        if names is True:
            return (), 0, None
        if not isinstance(names, Mapping) or not names.keys().isdisjoint(
            ("$ref", "anyOf", "oneOf", "allOf", *WITHOUT_EFFECT)
        ):
            self._to._note("propertyNames")
            return (), 0, None
        nodes: list[Node] = []
        values = values_of(names)
        if values is not None:
            texts = [each for each in values if isinstance(each, str)]
            nodes.append(node_of_texts(texts))
        for pattern in patterns_of(names.get("pattern", ())):
            nodes += self._to._parsed(pattern)
        form = names.get("format")
        if isinstance(form, str) and form in FORMATS:
            nodes += self._to._parsed(FORMATS[form])
        return (tuple(nodes), *counts_of(names, "minLength", "maxLength"))

    def _add_required(self, further: Any) -> None:
        for name in self._required:
            if name in self._named:
                continue
            has_pattern = any(
                matches(node, name, is_possible=True) for node, _ in self._patterns.values()
            )
            self._named[name] = True if has_pattern else further  # True: according to its pattern

    def _apply_patterns(self) -> None:
        for name, schema in self._named.items():
            for pattern, (node, each) in self._patterns.items():
                if each is True or each == {} or not matches(node, name, is_possible=True):
                    continue
                whole = self._to.references.merged([schema, each])
                if whole is None:
                    self._to._note(f"patternProperties {shown(pattern)} beside {shown(name)}")
                else:
                    self._named[name] = schema = whole

    def write(self) -> str:
        """Return the grammar.

        Raises:
            _Impossible: no object fits.
        """
        for name, schema in self._named.items():
            key = write_literal(json.dumps(name, ensure_ascii=False))
            is_required = name in self._required
            is_right = all(matches(node, name) for node in self._names_nodes)
            is_right = is_right and self._least_name <= len(name)
            is_right = is_right and (self._most_name is None or len(name) <= self._most_name)
            try:
                if not is_right:
                    raise _Impossible(f"propertyNames forbids {shown(name)}")
                value = self._to._member(schema, f"{self._name}_prop_{len(self._pairs)}")
            except _Impossible:
                if is_required:
                    raise
                continue
            self._pairs.append((key, value, is_required))
        self._extra = self._further_members()
        required = (place for place, (_, _, needed) in enumerate(self._pairs) if needed)
        self._last_required = max(required, default=-1)
        body = self._body()
        if body is None:
            raise _Impossible("required or minProperties asks for more members than are possible")
        blanks = self._to._blanks
        is_empty = not self._least and self._last_required < 0
        empty = f'"{{" {blanks} "}}"'
        if not body:
            return empty
        whole = f'"{{" {blanks} ({body}) {blanks} "}}"'
        return f"({whole}) | {empty}" if is_empty else whole

    def _further_members(self) -> str | None:
        """Return the grammar of an unnamed member; None if there is none."""
        found = []
        nodes = [node for node, _ in self._patterns.values()]
        kinds = [
            *(
                (f"{self._name}_key_{n}", (node,), each)
                for n, (node, each) in enumerate(self._patterns.values())
            ),
            (f"{self._name}_key", (), self._further),
        ]
        for name, own, schema in kinds:
            if schema is False:
                continue
            key = self._to._text(
                name,
                (*own, *self._names_nodes),
                self._least_name,
                self._most_name,
                tuple(self._named) if own else self._told_apart(),
                tuple(node for node in nodes if node not in own),
            )
            if key is None:
                continue
            try:
                value = self._to._member(schema, f"{name}_value")
            except _Impossible:
                continue
            found.append(f"{self._to._rule(name, key)} {self._to._colon} {value}")
        if not found:
            return None
        return self._to._rule(f"{self._name}_member", " | ".join(found))

    def _told_apart(self) -> tuple[str, ...]:
        """Return the names that a further member may not have, because their values differ.

        Each of their prefixes costs XGrammar as much time as a string of any text. With
        `minProperties` a further member must count, which one with a repeated name does not.
        """
        if self._least or self._further is False:
            return tuple(self._named)
        further = conditions(self._further)
        return tuple(
            name
            for name, schema in self._named.items()
            if conditions(schema) not in ("{}", further)
        )

    def _tails_reached(self) -> list[set[int]]:
        """Return for each position the numbers of members that `_tail` may start with."""
        reached: list[set[int]] = [set() for _ in range(len(self._pairs) + 1)]
        reached[0].add(1)
        for place, (_, _, is_required) in enumerate(self._pairs):
            reached[place + 1].update(map(self._next, reached[place]))
            if not is_required:
                reached[place + 1] |= reached[place]
        return reached

    def _body(self) -> str | None:
        """Return the grammar of the members; empty if none are possible, None if no object fits.

        Rules are written from the last member on, because each needs only those after it; a
        recursion from the first one would reach Python's limit with a thousand members.
        """
        if self._most != 0:
            reached = self._tails_reached()
            for place in reversed(range(len(self._pairs))):
                if not self._pairs[place][2]:
                    for number in sorted(reached[place]):
                        self._tail(place, number)
            if (body := self._tail(0, 1)) is not None:
                return body
        return None if self._least or self._last_required >= 0 else ""

    def _tail(self, place: int, number: int) -> str | None:
        """Return the grammar of the members from a position on, at least one.

        Args:
            place: position of the first possible member.
            number: number of members up to and including the first of them, see `_next`.

        Returns:
            None if none are possible.
        """
        if self._most is not None and number > self._most:
            return None
        if place == len(self._pairs):
            return self._extras(number)
        if self._pairs[place][2]:
            return self._taken(place, number)
        if (place, number) not in self._tails:
            choices = [self._taken(place, number), self._tail(place + 1, number)]
            found = [choice for choice in choices if choice is not None]
            name = f"{self._name}_tail_{place}_{number}"
            self._tails[place, number] = self._to._rule(name, " | ".join(found)) if found else None
        return self._tails[place, number]

    def _taken(self, place: int, number: int) -> str | None:
        """Return the grammar of the member at a position and those after it; None if impossible."""
        parts = []
        while True:
            parts.append(self._pair(place))
            place += 1
            if place == len(self._pairs) or not self._pairs[place][2]:
                break
            parts.append(self._to._comma)
            number = self._next(number)
            if self._most is not None and number > self._most:
                return None
        rest = self._behind(place, number)
        return None if rest is None else " ".join((*parts, rest))

    def _pair(self, place: int) -> str:
        """Return the grammar of a member.

        For an optional one a rule, which is compiled separately.
        """
        key, value, is_required = self._pairs[place]
        pair = f"{key} {self._to._colon} {value}"
        if is_required:
            return pair
        if place not in self._optional:
            self._optional[place] = self._to._named_rule(f"{self._name}_pair_{place}", pair)
        return self._optional[place]

    def _next(self, number: int) -> int:
        """Return the number of the next member; without `maxProperties` it stays at the minimum."""
        return number + 1 if self._most is not None else min(number + 1, max(1, self._least))

    def _behind(self, place: int, number: int) -> str | None:
        """Return the grammar of a comma and the members from a position on, or of none of them.

        The comma is a separate rule before the choice of a member: within each alternative, or in
        this rule, XGrammar would try tokens that start with blanks on all members that may follow.
        With a thousand members this took 20 s.
        """
        is_end = number >= self._least and self._last_required < place
        tail = self._tail(place, self._next(number))
        if tail is None:
            return '""' if is_end else None
        more = f"{self._to._basic('comma_before_key')} {tail}"
        if not is_end:
            return more
        if (place, number) not in self._parts:
            name = f"{self._name}_part_{place}_{number}"
            self._parts[place, number] = self._to._rule(name, f'"" | {more}')
        return self._parts[place, number]

    def _extras(self, number: int) -> str | None:
        """Return the grammar of further members, at least one; None if there are none.

        A grammar cannot tell whether keys repeat: only one of them is certain to count.
        """
        if self._extra is None:
            return None
        least = max(0, self._least - number)
        if least:
            self._to._note("minProperties of members that are not named")
        most = None if self._most is None else self._most - number
        more = f"({self._to._comma} {self._extra}){_count(least, most)}"
        return self._extra if most == 0 else f"{self._extra} {more}"


def _implied_type(schema: Schema) -> str | None:
    """Return the type whose keywords a schema has, ignoring other types that it allows."""
    has = (kind for kind, keys in KEYWORDS.items() if not schema.keys().isdisjoint(keys))
    return next(has, None)


def _counted(
    chars: Any, least: int, most: int | None, min_length: int, max_length: int | None
) -> tuple[str, int, int | None] | None:
    """Return a class of characters, and how often it may occur in a string with a length.

    Returns:
        None if it needs escapes and is short enough for an automaton, or if there is no string.
    """
    least = max(least, min_length)
    most = min((each for each in (most, max_length) if each is not None), default=None)
    written = write_chars(chars) if chars and can_count(chars, least, most) else []
    is_long = (least if most is None else most) > _MAX_CHAIN
    if not written or not written[0].startswith("[") or (len(written) > 1 and not is_long):
        return None
    if most == 0 or (most is not None and least > most):
        return None
    return written[0], least, most


def _powers(length: int) -> list[int]:
    """Return the block sizes of a text, largest first, without its last characters."""
    blocks = length // _BLOCK
    return [_BLOCK << bit for bit in reversed(range(blocks.bit_length())) if blocks >> bit & 1]


def _count(least: int, most: int | None) -> str:
    if most is None and least < 2:
        return "+" if least else "*"
    return f"{{{least},{'' if most is None else most}}}"


def write_literal(text: str) -> str:
    """Return a text as a literal of XGrammar's EBNF.

    It is split between two characters that XGrammar would read as one (see `guide`).
    """
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return '"' + PAIR.sub(lambda pair: f'{pair.group()[0]}" "{pair.group()[1]}', escaped) + '"'


_COMPARED = {
    "minimum": lambda value, bound: value >= bound,
    "exclusiveMinimum": lambda value, bound: value > bound,
    "maximum": lambda value, bound: value <= bound,
    "exclusiveMaximum": lambda value, bound: value < bound,
}
