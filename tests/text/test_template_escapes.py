"""Chat templates do not reach the environment of the server.

Each attack is first run without a sandbox, where it must print the secret. All are run with the
oldest release of Jinja2 that requirements.txt admits, and with two older ones, from whose own
sandboxes there are known ways out.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import FunctionType
from typing import Any

import jinja2
import pytest
from tests.support.paths import ROOT

from trtllm_truss.errors import InvalidRequest
from trtllm_truss.text.chat_template import ChatTemplate
from trtllm_truss.text.sandbox import Sandbox
from trtllm_truss.text.template_limits import Namespace
from trtllm_truss.text.template_values import FUNCTIONS

UV = Path(sys.executable).with_name("uv")
NAME = "TRUSS_SECRET_hf_access_token"
SECRET = "hf_PLANTED"
MESSAGES = [{"role": "user", "content": "hi"}]

Steps = tuple[str, ...]
"""Attributes, and items in brackets."""

_OS: Steps = ("[os]", "environ", f"[{NAME}]")
_UTILS: Steps = ("__init__", "__globals__", *_OS)
_RUNTIME: Steps = ("__init__", "__globals__", "[sys]", "modules", *_OS)
_FUNCTION: Steps = ("__globals__", "[json]", "codecs", "sys", "modules", *_OS)
WAYS: dict[str, tuple[str, str, Steps]] = {
    "cycler": ("{}", "cycler", _UTILS),
    "joiner": ("{}", "joiner", _UTILS),
    "namespace": ("{}", "namespace", _UTILS),
    "lipsum": ("{}", "lipsum", _UTILS[1:]),
    "method": ("{}", "cycler(1).next", _UTILS[1:]),
    "macro": ("{{% macro m() %}}{{% endmacro %}}{}", "m", _RUNTIME),
    "caller": (
        "{{% macro m() %}}{{{{ caller() }}}}{{% endmacro %}}{{% call m() %}}{}{{% endcall %}}",
        "m._environment",
        ("__init__", "__globals__", *_OS),
    ),
    "loop": ("{{% for i in [1] %}}{}{{% endfor %}}", "loop", _RUNTIME),
    "block": ("{{% block a %}}{{% endblock %}}{}", "self.a", _RUNTIME),
    "self": ("{}", "self", _RUNTIME),
    "undefined": ("{}", "nothing", _RUNTIME),
    "generator": (
        "{}",
        "(messages|map('string'))",
        ("gi_frame", "f_globals", "[typing]", "sys", "modules", *_OS),
    ),
    "raise_exception": ("{}", "raise_exception", _FUNCTION),
    "strftime_now": ("{}", "strftime_now", _FUNCTION),
}
"""A template around an expression, the expression for an object, and the steps from there."""


def _is_item(step: str) -> bool:
    return step.startswith("[")


def _dotted(steps: Steps) -> str:
    return "".join(step if _is_item(step) else f".{step}" for step in steps)


def _by_dots(value: str, steps: Steps) -> str:
    return value + _dotted(tuple(f"['{step[1:-1]}']" if _is_item(step) else step for step in steps))


def _by_items(value: str, steps: Steps) -> str:
    return value + "".join(f"['{step.strip('[]')}']" for step in steps)


def _by_hidden_names(value: str, steps: Steps) -> str:
    return value + "".join(f"['{step.strip('[]')[::-1]}'|reverse]" for step in steps)


def _by_filter(value: str, steps: Steps) -> str:
    for step in steps:
        value = f"{value}['{step[1:-1]}']" if _is_item(step) else f"({value}|attr('{step}'))"
    return value


def _by_map(value: str, steps: Steps) -> str:
    return f"([{value}]|map(attribute='{'.'.join(step.strip('[]') for step in steps)}')|list)[0]"


def _by_join(value: str, steps: Steps) -> str:
    return f"[{value}]|join(attribute='{'.'.join(step.strip('[]') for step in steps)}')"


def _by_group(value: str, steps: Steps) -> str:
    path = ".".join(step.strip("[]") for step in steps)
    return f"([{value}]|groupby('{path}'))[0].grouper"


def _formatted(method: str) -> Callable[[str, Steps], str]:
    def by(value: str, steps: Steps) -> str:
        return f"{method.format(json.dumps('{0' + _dotted(steps) + '}'))}({value})"

    return by


METHODS: dict[str, Callable[[str, Steps], str]] = {
    "dots": _by_dots,
    "items": _by_items,
    "hidden names": _by_hidden_names,
    "attr": _by_filter,
    "map": _by_map,
    "join": _by_join,
    "groupby": _by_group,
    "format": _formatted("{}.format"),
    "format of an item": _formatted("{}['format']"),
    "format by attr": _formatted("({}|attr('format'))"),
    "format by map": _formatted("([{}]|map(attribute='format')|list)[0]"),
    "format by map of attr": _formatted("([{}]|map('attr', 'format')|list)[0]"),
    "format of Markup": _formatted("({}|safe).format"),
    "format in a namespace": _formatted("namespace(f={}.format).f"),
    "format in a mapping": _formatted("{{'f': {}.format}}.get('f')"),
    "format by default": _formatted("(nothing|default({}.format))"),
    "format by select": _formatted("([{}.format]|select('callable')|list)[0]"),
    "format_map": lambda value, steps: (
        f"{json.dumps('{a' + _dotted(steps) + '}')}.format_map({{'a': {value}}})"
    ),
}
_BY_ITEM = ("items", "hidden names", "map", "join", "groupby")
"""Methods that ask for an item first, which an undefined value refuses."""

ATTACKS = {
    **{
        f"{way}, {method}": around.format("{{ " + by(value, steps) + " }}")
        for way, (around, value, steps) in WAYS.items()
        for method, by in METHODS.items()
        if not (way == "undefined" and method in _BY_ITEM)
    },
    **{
        f"subclasses of {name}": (
            f"{{% for c in {value}.__class__.__mro__[-1].__subclasses__() %}}"
            "{% if c.__name__ == '_wrap_close' %}"
            f"{{{{ c.__init__.__globals__['environ']['{NAME}'] }}}}{{% endif %}}{{% endfor %}}"
        )
        for name, value in (
            *(("a text", "''"), ("a list", "messages"), ("a mapping", "messages[0]")),
            *(("a number", "(1)"), ("a range", "range(3)"), ("none", "none")),
        )
    },
    "import": (
        "{{ raise_exception.__globals__['__builtins__']['__import__']('os')"
        f".environ['{NAME}'] }}}}"
    ),
    "getenv": f"{{{{ cycler.__init__.__globals__.os.getenv('{NAME}') }}}}",
    "file": (
        "{{ raise_exception.__globals__.json.codecs.sys.modules.pathlib"
        ".Path('/proc/self/environ').read_text() }}"
    ),
}


OLDER = ("3.1.4", "3.1.5")
"""Releases with CVE-2024-56326 and CVE-2025-27516, and with the latter."""


@pytest.fixture(autouse=True)
def _planted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(NAME, SECRET)


def _unprotected(source: str) -> str:
    environment = jinja2.Environment()
    environment.globals.update(
        raise_exception=FUNCTIONS["raise_exception"], strftime_now=FUNCTIONS["strftime_now"]
    )
    return environment.from_string(source).render(messages=MESSAGES)


def _shown(source: str) -> str:
    """Return the prompt that a template makes in the sandbox, or the error."""
    try:
        return ChatTemplate(source).render(MESSAGES, {})
    except InvalidRequest as refused:
        return refused.message


def _fails(attack: str) -> bool:
    """Return whether an attack works without a sandbox only."""
    # The file has what this process was started with.
    secret = "PATH=" if attack == "file" else SECRET
    return secret in _unprotected(ATTACKS[attack]) and secret not in _shown(ATTACKS[attack])


@pytest.mark.parametrize("attack", ATTACKS)
def test_an_attack_works_without_a_sandbox_only(attack: str) -> None:
    assert _fails(attack)


def test_there_are_enough_attacks() -> None:
    assert len(ATTACKS) >= 40


def test_the_sandbox_offers_no_class() -> None:
    offered = Sandbox().globals
    assert not [name for name, value in offered.items() if isinstance(value, type)]
    assert offered.keys() == {"dict", "namespace", "raise_exception", "range", "strftime_now"}
    assert not [name for name, value in vars(Namespace).items() if isinstance(value, FunctionType)]


def _oldest() -> str:
    """Return the oldest release that requirements.txt admits."""
    found = re.search(r"(?m)^jinja2>=([0-9.]+)", (ROOT / "requirements.txt").read_text())
    assert found is not None
    return found[1]


_PROGRAM = """
import jinja2
from tests.text.test_template_escapes import ATTACKS, _fails
print(jinja2.__version__, *(attack for attack in ATTACKS if not _fails(attack)), sep="\\n")
"""


@pytest.mark.server  # which needs a package index
@pytest.mark.parametrize(
    "release",
    [_oldest(), *(pytest.param(each, marks=pytest.mark.thorough) for each in OLDER)],
)
def test_no_attack_works_with_an_older_jinja(release: str, tmp_path: Path) -> None:
    install = [UV, "pip", "install", "--quiet", "--no-deps", "--target", tmp_path]
    subprocess.run([*install, f"jinja2=={release}"], check=True, timeout=240)
    ended = subprocess.run(
        [sys.executable, "-c", _PROGRAM],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{tmp_path}:{ROOT}", NAME: SECRET},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    assert ended.stdout.split("\n") == [release, ""]


@pytest.mark.parametrize("value", [str, dict, ChatTemplate, Namespace])
def test_no_class_can_be_called(value: Any) -> None:
    with pytest.raises(InvalidRequest, match="not safely callable"):
        ChatTemplate("{{ made(1) }}").render(MESSAGES, {"made": value})
