"""Chat templates end, and make no more than they may: in time and memory that are limited."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
from contextlib import suppress

import jinja2.sandbox
import pytest
from jinja2.exceptions import TemplateSyntaxError
from tests.support.waiting import PATIENCE_S

from trtllm_truss.errors import InvalidRequest
from trtllm_truss.text.chat_template import ChatTemplate
from trtllm_truss.text.sandbox import SandboxedTemplate
from trtllm_truss.text.template_limits import (
    MAX_CHARACTERS,
    MAX_SOURCE_CHARACTERS,
    TemplateLimitError,
)
from trtllm_truss.text.time_limit import TimeIsUp, run_limited

MESSAGES = [{"role": "user", "content": "hello world"}]
TOO_LARGE, WIDTH, RANGE, BITS = "too large", "a width", "a range", "a number"
LATE = "takes more than"
_NS = "{% set ns = namespace(s='<a', l=[1], m=[1], t=(1,)) %}"


def _grown(step: str, then: str = "") -> str:
    """Return a template that repeats a step 60 times."""
    return f"{_NS}{{% for i in range(60) %}}{step}{{% endfor %}}{then}"


def _text(value: str) -> str:
    return _grown(f"{{% set ns.s = {value} %}}", "{{ ns.s }}")


def _kept(value: str) -> str:
    """Return a template that keeps many values."""
    return (
        "{% set big = 'ab' * 1000000 %}{% set ns = namespace(l=[]) %}{% for i in range(100000) %}"
        f"{{% set ns.l = [ns.l, {value}] %}}{{% endfor %}}"
    )


def _shared(use: str) -> str:
    """Return a template with values of 2 ** 60 items, and a use of them."""
    return _grown(
        "{% set ns.l = [ns.l, ns.l] %}{% set ns.m = [ns.m, ns.m] %}{% set ns.t = (ns.t, ns.t) %}",
        use if use.startswith("{%") else f"{{{{ {use} }}}}",
    )


BOMBS: dict[str, str] = {
    "{{ 'a' * 10**10 }}": TOO_LARGE,
    "{{ 10**10 * 'a' }}": TOO_LARGE,
    "{{ ([1] * 10**10)|length }}": TOO_LARGE,
    "{{ '%1000000000d' % 1 }}": WIDTH,
    "{{ '%.1000000000f' % 1.5 }}": WIDTH,
    "{{ '%*d' % (1000000000, 1) }}": "a width of",
    "{{ '%.*f' % (1000000000, 1) }}": "a width of",
    "{{ '%((a))1000000000d' % {'(a)': 1} }}": WIDTH,
    "{{ '%1000000000d'|format(1) }}": WIDTH,
    "{{ '%1000000000d' is odd }}": "TypeError",
    "{{ '%1000000000d' is even }}": "TypeError",
    "{{ '%1000000000d' is divisibleby(1) }}": "TypeError",
    "{{ '{:>3000000000}'.format(1) }}": WIDTH,
    "{{ '{:>{w}}'.format(1, w=3000000000) }}": WIDTH,
    "{{ '{:.1000000000f}'.format(1.5) }}": WIDTH,
    "{{ ('{:>3000000000}'|safe).format(1) }}": WIDTH,
    "{{ '{a:>3000000000}'.format_map({'a': 1}) }}": WIDTH,
    "{{ 'a\\nb'|indent(1000000000) }}": WIDTH,
    "{{ 'a\\nb'|indent('x' * 1000000) }}": WIDTH,
    "{% filter indent(100000) %}a{% endfilter %}": WIDTH,
    "{{ 'x'|center(10**9) }}": WIDTH,
    "{% set x | center(10**9) %}x{% endset %}": WIDTH,
    "{{ ['x']|map('center', 10**9)|join }}": WIDTH,
    **{f"{{{{ 'x'.{name}(10**9) }}}}": WIDTH for name in ("center", "ljust", "rjust", "zfill")},
    "{{ '\t'.expandtabs(10**9) }}": WIDTH,
    "{{ [1]|tojson(indent=10**9) }}": WIDTH,
    "{{ [1]|tojson(indent='x' * 100000) }}": WIDTH,
    "{{ [1, 2]|tojson(separators=('x' * 1000000, ':')) }}": WIDTH,
    "{{ 1.5|round(10**9, 'ceil') }}": WIDTH,
    "{{ strftime_now('%Y' * 1000000) }}": WIDTH,
    "{{ range(10**9) }}": RANGE,
    "{{ [1, 2]|batch(10**9, 'x')|list }}": RANGE,
    "{{ [1, 2]|slice(10**9)|list }}": RANGE,
    "{{ 10**(10**10) }}": BITS,
    _grown("{% set ns.m = (ns.m if i else 3) * (ns.m if i else 3) %}"): BITS,
    **dict.fromkeys(
        (
            *map(_text, ("ns.s + ns.s", "ns.s ~ ns.s", "[ns.s, ns.s]|join", "ns.s.join(ns.s)")),
            *map(_text, ("ns.s.replace('a', 'aa')", "ns.s|replace('a', 'aa')")),
            *map(_text, ("'%s%s'|format(ns.s, ns.s)", "'{0}{0}'.format(ns.s)", "ns.s + ns.s|e")),
            *map(_text, ("'%(a)s%(a)s' % {'a': ns.s}", "([ns.s, ns.s]|tojson)", "ns.s * 2")),
            *map(
                _text,
                (
                    "[ns.s, ns.s]|string",
                    "(ns.s ~ ns.s)|urlencode",
                    "[ns.s]|sum(start=ns.s)",
                    "(ns.s ~ ns.s)|forceescape",
                ),
            ),
            _grown("{% set x %}{{ ns.s }}{{ ns.s }}{% endset %}{% set ns.s = x %}", "{{ ns.s }}"),
            "{% autoescape true %}" + _text("ns.s ~ ns.s") + "{% endautoescape %}",
            _grown("{% set ns.l = ns.l + ns.l %}", "{{ ns.l|length }}"),
            "{% set b = 'a' * 1000000 %}{% for i in range(100000) %}{{ b }}{% endfor %}",
            *map(_kept, ("big.upper() ~ i", "big[1:]", "big|upper", "big|trim('a')", "big + 'a'")),
            *map(_kept, ("big.split('a')", "range(100000)|list", "big|list", "big|reverse")),
            *map(_kept, ("big.partition('b')", "big.splitlines() + [big|title]", "big ~ i")),
        ),
        f"{TOO_LARGE}|{LATE}",
    ),
    **dict.fromkeys(
        map(
            _shared,
            (
                *(
                    "ns.l",
                    "ns.l|tojson",
                    "ns.l|string",
                    "ns.l ~ ''",
                    "[ns.l]|join",
                    "ns.t|urlencode",
                ),
                *(
                    "ns.l == ns.m",
                    "ns.l < ns.m",
                    "ns.l in [ns.m]",
                    "[ns.m] is sameas 1 or ns.l != ns.m",
                ),
                *("ns.l is eq(ns.m)", "ns.l is in [ns.m]", "[ns.l, ns.m]|sort", "[ns.l, ns.m]|max"),
                *("[ns.l].index(ns.m)", "[ns.l].count(ns.m)", "[ns.l, ns.m]|unique|list"),
                *(
                    "{ns.t: 1}",
                    "{}.get(ns.t)",
                    "{}[ns.t]",
                    "dict([(ns.t, 1)])",
                    "namespace([(ns.t, 1)])",
                ),
                *("'%s' % [ns.t]", "'%r'|format(ns.l)", "'{}'.format(ns.t)", "'{!r}'.format(ns.t)"),
                *("ns.t is upper", "ns.t|upper", "ns.l|trim", "raise_exception(ns.l)"),
                *("[ns.l]|map('string')|list", "[ns.l, ns.m]|select('eq', ns.m)|list"),
                "{% for i in [1, 2] %}{{ loop.changed(ns.l if i == 1 else ns.m) }}{% endfor %}",
                "{% set x %}{{ ns.l }}{% endset %}",
            ),
        ),
        TOO_LARGE,
    ),
    "{% set ns = namespace() %}{% set ns.a = ns %}{{ ns }}": "a namespace",
    "{% set ns = namespace() %}{% set ns.a = ns %}{{ [ns]|tojson }}": "a namespace",
    "{% set ns = namespace() %}{% set ns.a = [ns] %}{{ ns.a == [ns.a] }}": "a namespace",
    "{% macro m(n) %}{{ m(n) }}{% endmacro %}{{ m(1) }}": "RecursionError",
    "{% block a %}{{ self.a() }}{% endblock %}": "RecursionError",
    "{% for i in [1] recursive %}{{ loop([1]) }}{% endfor %}": "RecursionError",
    "{% macro m(n) %}{% if n %}{{ m(n-1) }}{{ m(n-1) }}{% endif %}{% endmacro %}{{ m(60) }}": LATE,
    "{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}": LATE,
    "{% for i in range(100000) if range(100000)|select('odd')|list|length < 0 %}{% endfor %}": LATE,
    "{{ range(100000)|map('center', 1000)|map('length')|sum }}{{ range(100000)|map('string')"
    "|map('center', 1000)|map('reverse')|map('upper')|map('lower')|map('title')|list|length }}": (
        f"{TOO_LARGE}|{LATE}"
    ),
    "{{ 'x'|truncate(1) }}": "AssertionError",
    "{% include 'x' %}": "TypeError",
    "{{ messages[messages[0].content * 1000].x }}": "has no",
}

_PROGRAM = """
import json, resource, sys
from trtllm_truss.errors import InvalidRequest
from trtllm_truss.text.chat_template import ChatTemplate

messages = json.loads(sys.argv[1])
ChatTemplate("{{ messages }}").render(messages, {})
held = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (held + (600 << 20),) * 2)
for source in json.load(sys.stdin):
    try:
        shown = ChatTemplate(source).render(messages, {}, 0.25)
    except InvalidRequest as refused:
        shown = refused.message
    print(json.dumps(shown[:2000]), flush=True)
"""


@pytest.fixture(scope="module")
def endings() -> dict[str, str]:
    """The end of each bomb, in one process with 600 MiB."""
    ended = subprocess.run(
        [sys.executable, "-c", _PROGRAM, json.dumps(MESSAGES)],
        input=json.dumps([*BOMBS]),
        capture_output=True,
        text=True,
        check=True,
    )
    return dict(zip(BOMBS, map(json.loads, ended.stdout.splitlines()), strict=True))


@pytest.mark.parametrize("bomb", BOMBS)
def test_a_bomb_is_refused_with_its_reason(bomb: str, endings: dict[str, str]) -> None:
    assert endings[bomb].startswith("messages do not fit the model's chat template: ")
    assert re.search(BOMBS[bomb], endings[bomb])
    assert len(endings[bomb]) < 1200


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("a" * (MAX_SOURCE_CHARACTERS + 1), "1,048,577 characters; at most 1,048,576"),
        ("{{ " + "(" * 1000 + "1" + ")" * 1000 + " }}", "nested|recursion"),
        ("{% if x %}" * 1000 + "{% endif %}" * 1000, "nested|recursion|indent"),
        *(
            (f"{{{{ 'x'|{name} }}}}", f"No filter named '{name}'")
            for name in ("pprint", "striptags", "urlize", "wordwrap", "xmlattr")
        ),
    ],
    ids=lambda value: value[:20],
)
def test_a_template_that_cannot_be_compiled_is_refused(source: str, reason: str) -> None:
    with pytest.raises(TemplateSyntaxError, match=reason):
        ChatTemplate(source)


def test_a_large_conversation_may_make_more() -> None:
    """Most templates copy a message some times; some append each message to one text."""
    twice = "{% set ns = namespace(s='') %}{% for m in messages %}{% set ns.s = ns.s ~ m.content %}"
    template = ChatTemplate(twice + "{% endfor %}{{ ns.s ~ ns.s.upper() ~ ns.s.title() ~ ns.s }}")
    messages = [{"role": "user", "content": "word " * 100_000}] * 50
    assert len(template.render(messages, {}, 60)) == 100_000_000 > MAX_CHARACTERS
    with pytest.raises(InvalidRequest, match="too large"):
        ChatTemplate("{{ messages[0].content * 1000 }}").render(messages[:1], {}, 60)


def test_what_a_template_drops_does_not_count() -> None:
    count = "{% set ns = namespace(s='') %}{% for i in range(1000) %}{% set ns.s = 'ab' * 500000 %}"
    prompt = ChatTemplate(count + "{% endfor %}{{ ns.s|length }}").render(MESSAGES, {}, 60)
    assert prompt == "1000000"


SAME = r"""
'a b'|title
'aB'|capitalize
'a'|center(5)
'a\nb'|indent
'a\nb'|indent(2, true)
'a\nb'|indent('--')
'a'|upper
'A'|lower
' a '|trim
'xax'|trim('x')
'a,b'|list
'abc'|reverse
[1, 2]|reverse|list
'a-b'.split('-')
'a b  c'.split()
'a b c'.split(' ', 1)
'a-b-c'.rsplit('-', 1)
'a\nb\r\nc'.splitlines()
'a=b'.partition('=')
'a'.zfill(3)
'a\tb'.expandtabs(4)
'a'.join(['x', 'y'])
['x', 'y']|join(', ')
[1, none]|join('-')
[{'a': 1}, {'a': 2}]|join('+', attribute='a')
[{'a': 1}, {'a': 2}]|sum(attribute='a')
[1.5, 2]|sum
[[1], [2]]|sum(start=[])
[3, 1, 2]|sort
['b', 'A']|sort
[1, 1, 2]|unique|list
{'b': 1, 'a': 2}|dictsort
{'b': 1}|items|list
[1, 2, 3]|batch(2, 'x')|list
[1, 2, 3]|slice(2)|list
[{'a': 1}, {'a': 1}]|groupby('a')
'%s-%03d' % ('a', 5)
'%s %(a)'|replace('%', '')
'%(a)s%%' % {'a': 1}
'%s'|format(1)
'%(b)5.2f'|format(b=1.5)
'{}-{a:>4}'.format(1, a='x')
'{0[a]} {0.a}'.format({'a': 1})
'{a!r}'.format_map({'a': 'x'})
1.555|round(2)
1.5|round
7|round(-1)
'7'|int
'x'|int(3)
'ff'|int(base=16)
'1.5'|float
5 % 3
2 ** 10
2 ** -1
3 * 'ab'
[1] * 3
[1] + [2]
(1,) + (2,)
1 + 1.5
7 // 2
'a' ~ 1 ~ none ~ [1]
'abc'[1:]
'abc'[::-1]
[1, 2, 3][:-1]
messages[0:1]
(1, 2)[1:]
1 < 2 < 3
[1] == [1]
'a' in ['a']
none is none
3 is odd
4 is even
4 is divisibleby(2)
{'a': [1]} == {'a': [1]}
'a' is in ['a']
[1, 2] is eq([1, 2])
'A' is upper
x is undefined
{'a': 1}|tojson
{'b': 1, 'a': 'ü<'}|tojson(indent=2)
[1]|tojson(separators=(',', ':'))
'<a>'|e
'<a>'|safe ~ '<'
('<%s>'|safe) % '<'
('<{}>'|safe).format('<')
'<'|escape|string
'a b'|urlencode
{'a': 'b c'}|urlencode
'a b c'|wordcount
'abcdef'|truncate(3, true, '', 0)
1000|filesizeformat
messages|map(attribute='role')|list
messages|selectattr('role', 'eq', 'user')|list
['a', 'b']|map('upper')|list
[1, 2]|select('odd')|list
[1, 2]|reject('odd')|list
[1, 2]|min
messages|rejectattr('role', 'eq', 'user')|list
dict(a=1)
dict([('a', 1)])
namespace(a=1).a
messages[0]['role']
messages[0].role
messages[0].get('x', 1)
messages[0].items()|list
messages[0].nope
(messages[0]|attr('items'))()|list
('a', 'b').index('b')
[1, 1].count(1)
messages|length
x|default('d')
range(3)|list
range(5, 0, -2)|list
nope is defined
strftime_now is defined
'a'.nope is defined
'x'.startswith('x')
' x '.strip()
'xx'.lstrip('x')
'Ab'.swapcase()
'ab'.removeprefix('a')
'a' if 1 else 'b'
[1, 2]|first
'ab'|last
[1, 2]|random is number
'a'['upper']()
-(2 ** 3)
'<'|e|forceescape
('<'|e) ~ '&'
"""


@pytest.mark.parametrize("expression", SAME.split("\n")[1:-1])
def test_values_are_those_of_jinja(expression: str) -> None:
    source = f"{{{{ {expression} }}}}"
    plain = jinja2.sandbox.ImmutableSandboxedEnvironment()
    plain.filters["tojson"] = lambda value, **options: json.dumps(
        value, ensure_ascii=False, **options
    )
    plain.globals["strftime_now"] = str
    wanted = plain.from_string(source).render(messages=MESSAGES)
    assert ChatTemplate(source).render(MESSAGES, {}) == wanted


def test_a_call_that_ends_in_time_returns_its_result() -> None:
    assert run_limited(lambda: 5, 0.05) == 5
    with pytest.raises(KeyError):
        run_limited(lambda: {}["x"], 0.05)


def _turn() -> None:
    while True:
        with suppress(Exception):  # as the code of a stranger may
            sum(range(1000))


def test_a_loop_ends_in_any_thread() -> None:
    ended = []

    def limited() -> None:
        with pytest.raises(TimeIsUp):
            run_limited(_turn, 0.05)
        ended.append(threading.get_ident())
        sum(range(100_000))  # an exception that came too late would come here

    threads = [threading.Thread(target=limited) for _ in range(3)]
    for thread in threads:
        thread.start()
    limited()
    for thread in threads:
        thread.join()
    assert len({*ended}) == 4


class _Swallows:
    """Keeps the first exception that comes while it is destroyed, as Python does for all."""

    def __del__(self) -> None:
        _turn()


@pytest.mark.filterwarnings("ignore:Exception ignored in")
def test_an_exception_that_a_destructor_swallows_comes_again() -> None:
    def leave_one(count: list[int]) -> None:
        while True:
            count[0] += 1
            if count[0] == 1:
                _Swallows()

    count = [0]
    with pytest.raises(TimeIsUp):
        run_limited(lambda: leave_one(count), 0.05)
    assert count[0] > 1


LATE_THEN_PROFILED = """
import sys
from trtllm_truss.text.time_limit import TimeIsUp, run_limited

def turn():
    while True:
        pass

try:
    run_limited(turn, 0.05)
except TimeIsUp:
    sys.setprofile(lambda frame, event, argument: None)
    (lambda: print("profiled"))()
"""


def test_nothing_is_left_pending_after_a_late_call() -> None:
    """Python 3.11 hangs at the first call that a profiler sees while its flag is set."""
    command = [sys.executable, "-c", LATE_THEN_PROFILED]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S)
    assert ended.stdout == "profiled\n", ended.stderr


def test_a_forked_process_has_its_own_watch() -> None:
    run_limited(lambda: None, 0.05)  # starts the thread, which a child does not have
    child = os.fork()
    if not child:
        try:
            run_limited(_turn, 0.05)
        except TimeIsUp:
            os._exit(7)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


def nested(depth: int, values: int) -> object:
    value: object = list(range(values))
    for _ in range(depth):
        value = {"a": value}
    return value


def test_nesting_multiplies_what_is_indented() -> None:
    """60,000 numbers at level 50 are 12 MB of blanks at four a level."""
    for indent, fits in ((4, False), ("  ", False), (0, True), (None, True)):
        template = SandboxedTemplate("{{ tools|tojson(indent=indent) }}")
        variables = {"tools": nested(50, 60_000), "indent": indent}
        if fits:
            assert json.loads(template.render(variables)) == variables["tools"]
        else:
            with pytest.raises(TemplateLimitError, match="nested too deeply"):
                template.render(variables)
    usual = [{"type": "function", "function": nested(9, 12)} for _ in range(512)]
    written = SandboxedTemplate("{{ tools|tojson(indent=4) }}").render({"tools": usual})
    assert json.loads(written) == usual
