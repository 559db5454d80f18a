"""Read options from servers' command lines, alone or behind `docker run`, mpirun and the like."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from trtllm_truss.errors import SettingsError
from trtllm_workbench.importers.rules import Given, OptionRule, find_rule, not_needed, unsupported

MODEL = "model"
"""The option that a positional argument stands for."""

_SHARED = "the platform sizes /dev/shm; in Docker and Kubernetes see docs/docker.md"
_HOST = "the platform runs the container; see docs/deploy.md"
_NO_FOLDERS = "let `weights` of config.yaml mount what the container needs"
DOCKER = {
    rule.name: rule
    for rule in (
        *not_needed("`resources.accelerator` of config.yaml names the GPUs", "docker gpus"),
        *not_needed(_SHARED, "docker ipc", "docker shm_size"),
        *not_needed("Truss's server listens where the platform expects it", "docker publish"),
        *not_needed("`base_image` of config.yaml names the image", "docker image"),
        *unsupported(f"folders of this machine stay here; {_NO_FOLDERS}", "docker volume"),
        *unsupported(f"folders of this machine stay here; {_NO_FOLDERS}", "docker mount"),
        *unsupported("its variables are elsewhere; name the file as a source", "docker env_file"),
        *not_needed(
            _HOST,
            *(f"docker {name}" for name in ("name", "runtime", "network", "ulimit", "entrypoint")),
            *(f"docker {name}" for name in ("device", "group_add", "security_opt", "cap_add")),
            *(f"docker {name}" for name in ("restart", "user", "workdir", "memory", "platform")),
        ),
        *(
            OptionRule(name=f"docker {name}", outcome=rule.outcome, reason=_HOST, switch=True)
            for name in ("rm", "interactive", "tty", "detach", "privileged", "init", "pull")
            for rule in not_needed(_HOST, name)
        ),
        *not_needed("processes and ranks start by themselves", "launcher"),
    )
}
"""Options of `docker run`, and the words before a server's command in its line."""

_DOCKER_SHORT = {
    **{"v": "volume", "p": "publish", "i": "interactive", "t": "tty", "d": "detach"},
    **{"net": "network", "w": "workdir", "m": "memory", "u": "user"},
}
_ENV = ("e", "env")
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=")
_REFERENCE = re.compile(r"\$(?:(\w+)|\{(\w+)(?::?-([^}]*))?\})")
_SUBSTITUTION = re.compile(r"\$\([^()]*\)")
_COMMENT = re.compile(r"(?m)(^\s*)#.*$|(\s)#[^'\"\n]*$")
_PROMPT = re.compile(r"(?m)^\s*\$ ")
_ENDS = frozenset(";&|\n")
_REDIRECTIONS = frozenset("<>")
_VALUE = re.compile(r"(?!-)|-\d")
_NOT_CONVERTED = re.compile(
    r"(?:^|/)(?:vllm serve|text-generation-launcher)\b|-m vllm\.entrypoints\."
    r"|vllm/vllm-|vllm-openai|/vllm:(?!/)|text-generation-inference(?::(?!/)|@|$)"
)
"""Commands and images of vLLM and TGI."""

_OTHER_COMMANDS = ("disaggregated", "disaggregated_mpi_worker", "mm_embedding_serve", "grpc")


@dataclass(frozen=True, slots=True)
class Command:
    """A server's command.

    Attributes:
        kind: kind of the server.
        before: the words before its own.
        arguments: the words after its name.
        environment: the variables set for it.
    """

    kind: str
    before: Sequence[str]
    arguments: Sequence[str]
    environment: dict[str, str] = field(default_factory=dict)


def find_command(text: str, source: str) -> Command | None:
    """Return the only server that a text starts; None if it starts none.

    Variables set in the text are substituted.

    Raises:
        SettingsError: a quote is open, or the text starts several servers.
    """
    variables: dict[str, str] = {}
    exported: dict[str, str] = {}
    found = []
    for words in _commands(text, source):
        filled = _spliced([_fill(word, variables) for word in words], source)
        own = [word for word in filled if word != "export"]
        if all(_ASSIGNMENT.match(word) for word in own):
            given = dict(word.split("=", 1) for word in own)
            variables |= given
            exported |= given if own != filled else {}
        elif program := _program(filled):
            kind, begin, end = program
            found.append(Command(kind, filled[:begin], filled[end:], dict(exported)))
    if len(found) > 1:
        raise SettingsError(
            f"{source} starts {len(found)} servers; keep the one to import, the others are "
            "deployments of their own."
        )
    return found[0] if found else None


def _commands(text: str, source: str) -> Iterator[list[str]]:
    """Split a shell's text into the words of its commands, without redirections."""
    text = _COMMENT.sub(" ", text.replace("\r\n", "\n"))
    text = _PROMPT.sub("", re.sub(r"\\\n", " ", text))
    text = _SUBSTITUTION.sub("$(…)", text)  # one word, whatever it runs
    lexer = shlex.shlex(text, posix=True, punctuation_chars=";&|<>\n")
    lexer.whitespace, lexer.whitespace_split, lexer.commenters = " \t\r", True, ""
    words: list[str] = []
    skip = False
    try:
        for word in lexer:
            if word and set(word) <= _ENDS:
                yield words
                words = []
            elif word and set(word) <= _ENDS | _REDIRECTIONS:
                if words and words[-1].isdigit():
                    words.pop()
                skip = True
            elif skip:
                skip = False
            else:
                words.append(word)
    except ValueError as error:
        raise SettingsError(
            f"{source} is not a command line ({str(error).lower()}); correct its quotes."
        ) from None
    yield words


def _fill(word: str, variables: Mapping[str, str]) -> str:
    def value(match: re.Match[str]) -> str:
        name = match[1] or match[2]
        default = match[3] if match[3] is not None else match[0]
        return variables.get(name, default)

    return _REFERENCE.sub(value, word)


def _spliced(words: list[str], source: str) -> list[str]:
    """Replace the text of `bash -c` with its words."""
    if "-c" in words[:-1]:
        place = words.index("-c")
        inner = [command for command in _commands(words[place + 1], source) if _program(command)]
        if inner:
            return [*words[:place], *inner[-1]]
    return words


def _program(words: Sequence[str]) -> tuple[str, int, int] | None:
    """Return a server's kind, and the positions of its name and of its arguments."""
    for place, word in enumerate(words):
        base, then = word.rsplit("/", 1)[-1], (words[place + 1] if place + 1 < len(words) else "")
        if base == "trtllm-serve":
            if then in _OTHER_COMMANDS:
                raise SettingsError(
                    f"the command is `trtllm-serve {then}`, which has no counterpart; import the "
                    "`trtllm-serve` command of one server."
                )
            return "trtllm-serve", place, place + (2 if then == "serve" else 1)
    if any(map(_NOT_CONVERTED.search, map(" ".join, pairwise([*words, ""])))):
        raise SettingsError(
            "the command is vLLM's or TGI's, whose options are not converted; name the model "
            "itself, trtllm-truss init org/model, and see docs/importing.md for its options."
        )
    return None


def command_options(command: Command, rules: Mapping[str, OptionRule]) -> list[Given]:
    """Return the options of a command; variables first, which its arguments override."""
    before = list(_before(command.before))
    variables = [Given(name.lower(), name, value) for name, value in command.environment.items()]
    return [*variables, *before, *_joined(_arguments(command.arguments, rules), rules)]


def _before(words: Sequence[str]) -> Iterator[Given]:
    launcher: list[str] = []
    rest = iter(words)
    for word in rest:
        if _ASSIGNMENT.match(word):
            name, _, value = word.partition("=")
            yield Given(name.lower(), name, value)
        elif word.rsplit("/", 1)[-1] in ("docker", "podman"):
            yield from _docker(rest)
        elif word != "export":
            launcher.append(word)
    if launcher:
        yield Given("launcher", launcher[0], " ".join(launcher[1:]) or "true")


def _docker(words: Iterator[str]) -> Iterator[Given]:
    """Read `run`, its options and its image."""
    for word in words:
        if word == "run":
            continue
        if not word.startswith("-"):
            yield Given("docker image", "docker run", word)
            return
        name, equals, value = word.lstrip("-").partition("=")
        is_long = word.startswith("--")
        if not is_long and len(name) > 1 and set(name) <= set("itd"):
            yield from (Given(f"docker {_DOCKER_SHORT[each]}", word, "true") for each in name[:1])
            continue
        if not is_long and name not in (*_DOCKER_SHORT, *_ENV) and len(name) > 1:
            name, value, equals = name[0], word[2:], "="  # -p8000:8000, -eNAME=VALUE
        key = f"docker {_DOCKER_SHORT.get(name, name).replace('-', '_')}"
        if key in DOCKER and DOCKER[key].is_switch:
            value = value or "true"
        elif not equals:
            value = next(words, "")
        if name in _ENV:
            variable, _, text = value.partition("=")
            yield Given(variable.lower(), variable, text)
        else:
            yield Given(key, word.partition("=")[0], value)


def _arguments(words: Sequence[str], rules: Mapping[str, OptionRule]) -> Iterator[Given]:
    place = 0
    positional = [MODEL]
    while place < len(words):
        word = words[place]
        place += 1
        if _VALUE.match(word):
            name = positional.pop() if positional else word
            yield Given(name, word if name == word else name.upper(), word)
            continue
        name, equals, value = word.lstrip("-").partition("=")
        name = name.replace("-", "_")
        rule = find_rule(name, rules)
        if rule is None and name.startswith("no_") and name[3:] in rules:
            yield Given(name[3:], word, "false")
            continue
        if not equals:
            following = list(_values(words[place:]))
            if rule is not None and rule.is_switch:
                following = [each for each in following[:1] if each.lower() in ("true", "false")]
            elif rule is None or not rule.several:
                following = following[:1]
            if rule is not None and not following and not rule.is_switch:
                raise SettingsError(f"{word} has no value; write one after it.")
            place += len(following)
            value = " ".join(following) or "true"
        yield Given(name, word.partition("=")[0], value)


def _values(words: Iterable[str]) -> Iterator[str]:
    for word in words:
        if not _VALUE.match(word):
            return
        yield word


def _joined(given: Iterable[Given], rules: Mapping[str, OptionRule]) -> list[Given]:
    """Join `--option.field value` into one option with an object."""
    joined: list[Given] = []
    objects: dict[str, tuple[list[str], dict[str, object]]] = {}
    for option in given:
        head, dot, path = option.name.partition(".")
        if not dot or option.name in rules or head not in rules:
            joined.append(option)
            continue
        spellings, content = objects.setdefault(head, ([], {}))
        spellings.append(option.spelling)
        *parents, key = path.split(".")
        for parent in parents:
            content = content.setdefault(parent, {})  # type: ignore[assignment]
        content[key] = _typed(option.value)
    for head, (spellings, content) in objects.items():
        joined.append(Given(head, ", ".join(spellings), json.dumps(content)))
    return joined


def _typed(text: str) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text
