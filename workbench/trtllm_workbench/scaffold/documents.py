"""Write the files of a new Truss; config.yaml and README.md give the reason for each choice.

The others come from this checkout or from the installed wheel. An image installs wheels as
archives, without their dependencies.
"""

from __future__ import annotations

import importlib.metadata
import json
import re
import shlex
import shutil
import tempfile
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

import trtllm_truss
from trtllm_builder.converters import INSTALL_COMMAND
from trtllm_truss import __version__
from trtllm_truss.artifacts.open_repository import PACKAGE
from trtllm_truss.artifacts.s3 import S3
from trtllm_truss.cli.baseten import ConcurrencyTarget, predict_concurrency
from trtllm_truss.engines.diagnostics import Diagnostic
from trtllm_truss.engines.images import BaseImage
from trtllm_truss.errors import SettingsError
from trtllm_truss.settings.loading import ACCESS_TOKEN_SECRET
from trtllm_workbench.scaffold.docker_server import SLIM, own_server_section
from trtllm_workbench.scaffold.placing import Place

PARTS = (
    "model",
    "data",
    "requirements.txt",
    "requirements/wheels.txt",
    ".truss_ignore",
    "LICENSE",
)
"""Copied from the root of a Truss; setup.py puts the same files into the wheel."""

_SERVER = Path(trtllm_truss.__file__).resolve().parent
_PACKAGES = tuple(
    _SERVER.with_name(name) for name in ("trtllm_truss", "trtllm_backends", "trtllm_builder")
)
_IN_WHEEL = "truss_files"
_OF_WHEEL = Path(__file__).resolve().parents[1] / _IN_WHEEL
_NAME_LENGTH = 60
_LEFT_OUT = shutil.ignore_patterns("__pycache__", "*.py[cod]", "*.egg-info", ".*_cache")


OWN_NAME = "trtllm-truss"
"""`model_name` of this project's own config.yaml."""


def model_name(repository: str) -> str:
    """Derive a name from a repository that is valid as a folder and as `model_name`."""
    last = repository.rstrip("/").rsplit("/", 1)[-1].lower()
    name = re.sub(r"[^a-z0-9.]+", "-", last)[:_NAME_LENGTH].strip("-.")
    return name or OWN_NAME


def write_folder(output: Path, texts: Mapping[str, str], requirements: list[str]) -> None:
    """Write a Truss to a new or empty folder, completely or not at all.

    Args:
        texts: additional files by name.
        requirements: lines to append to requirements.txt.

    Raises:
        SettingsError: `output` cannot be written or is no longer empty.
    """
    files = template()
    for source in (*_PACKAGES, *(files / part for part in PARTS)):
        if output.resolve().is_relative_to(source):
            raise SettingsError(f"--output {output} is inside {source}; name a folder elsewhere.")
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{output.name}-", dir=output.parent) as around:
            root = Path(around) / output.name
            root.mkdir()
            _fill(root, files, texts, requirements)
            root.replace(output)
    except OSError as error:
        raise SettingsError(
            f"--output {output} cannot be written ({error.strerror}); name a new folder where you "
            "may write."
        ) from error


def _fill(root: Path, files: Path, texts: Mapping[str, str], requirements: list[str]) -> None:
    for part in PARTS:
        source = files / part
        if source.is_dir():
            shutil.copytree(source, root / part, ignore=_LEFT_OUT)
        else:
            (root / part).parent.mkdir(exist_ok=True)
            shutil.copyfile(source, root / part)
    for package in _PACKAGES:
        shutil.copytree(package, root / "packages" / package.name, ignore=_LEFT_OUT)
    if requirements:
        with (root / "requirements.txt").open("a", encoding="utf-8") as file:
            file.write("".join(f"{line}\n" for line in requirements))
    for name, text in texts.items():
        (root / name).write_text(text, encoding="utf-8")


def template() -> Path:
    """Return the folder with `PARTS`: inside an installed wheel, or the Truss around the package.

    Raises:
        SettingsError: the installation is incomplete.
    """
    places = (_OF_WHEEL, _SERVER.parents[1])
    found = [place for place in places if all((place / part).exists() for part in PARTS)]
    if not found:
        raise SettingsError(
            f"this installation of trtllm-truss in {_SERVER.parent} lacks {', '.join(PARTS)}; "
            "install the wheel again, or run init from a checkout."
        )
    return found[0]


_LOCK = "requirements/wheels.txt"
_WHEEL = re.compile(r"[A-Za-z0-9._-]+==[A-Za-z0-9.!+_-]+")


def wheels(repositories: Sequence[str], of_engine: Sequence[str] = ()) -> list[str]:
    """Return the wheels that a Truss needs, as `name==version`.

    Raises:
        SettingsError: the package of a `package://…` has no usable name or version.
    """
    names = [name.removeprefix(PACKAGE) for name in repositories if name.startswith(PACKAGE)]
    pins = [pin for pin in locked() if pin.partition("==")[0] in of_engine]
    return list(dict.fromkeys([*pins, *map(_wheel_of, dict.fromkeys(names))]))


def build_commands(pins: Sequence[str]) -> list[str]:
    """Return the commands of the image's build that install wheels.

    pip accepts hashes in requirement files only, and at that point of the build a Truss has no file
    of its own, whatever config.yaml it is pushed with, so the file is standard input.
    """
    lock = locked()
    lines = " ".join(f'"{pin} {lock[pin]}"' for pin in pins if pin in lock)
    others = " ".join(unlocked(pins))
    install = "pip install --no-deps"
    return [
        *([rf'printf "%s\n" {lines} | {install} --require-hashes -r /dev/stdin'] if lines else []),
        *([f"{install} {others}"] if others else []),
    ]


def unlocked(pins: Sequence[str]) -> list[str]:
    """Return the wheels without known hashes: nothing that is installed has them."""
    return [pin for pin in pins if pin not in locked()]


def locked() -> Mapping[str, str]:
    """Return pip's options with the hashes of each wheel in the lock file."""
    text = (template() / _LOCK).read_text(encoding="utf-8").replace("\\\n", "")
    rows = [line.split() for line in text.splitlines() if line.strip()]
    return {pin: " ".join(hashes) for pin, *hashes in rows}


def _wheel_of(package: str) -> str:
    names = importlib.metadata.packages_distributions().get(package, [])
    wheel = f"{names[0]}=={importlib.metadata.version(names[0])}" if names else ""
    if not _WHEEL.fullmatch(wheel):
        raise SettingsError(
            f"{PACKAGE}{package} comes from no installed wheel, so the image cannot install it; "
            "install it with pip first, or name a repository."
        )
    return wheel


S3_REQUIREMENT = "boto3>=1.36"


SERVER_REQUIREMENTS = ("uvicorn>=0.24.0,<1", "uvloop>=0.19.0", "httptools>=0.6,<1")
"""Requirements of our own server.

The first two ranges are those of Truss's server, whose packages its image does not have.
"""


def extra_requirements(
    repositories: Sequence[str], of_engine: Sequence[str], *, own_server: bool = False
) -> list[str]:
    """Return the lines to add to requirements.txt."""
    uses_s3 = any(repository.startswith(S3) for repository in repositories)
    of_server = SERVER_REQUIREMENTS if own_server else ()
    return [*of_engine, *([S3_REQUIREMENT] if uses_s3 else []), *of_server]


def consent_text(metadata: Mapping[str, Any], given: str) -> str:
    """Describe the code that `trust_remote_code` allows, and who allowed it.

    Args:
        metadata: keys of `model_metadata`.
        given: how it was given, such as "by --trust-remote-code".
    """
    build = metadata.get("build") or {}
    names = (
        metadata.get("engine_repository"),
        build.get("checkpoint_repository"),
        metadata.get("tokenizer_repository"),
    )
    authors = " and ".join(dict.fromkeys(str(name) for name in names if name))
    pickles = " A build also loads pickled weights, which run code as well." if build else ""
    return (
        f"trust_remote_code was set {given}: Python code of {authors} runs with all rights and "
        f"secrets of the server.{pickles} Remove it unless you trust the authors."
    )


_WIDTH = 98
_WHOLE_WORDS: Mapping[str, Any] = {"break_on_hyphens": False, "break_long_words": False}
"""Options of `textwrap` that keep paths whole."""

_QUESTION = "What is machine learning?"
_MAX_TOKENS = 128
_GIB = 1 << 30
_CPU_CORES = "4"
_CPU_FLOOR_BYTES = 4 * _GIB
_AUTOSCALING = (
    "https://api.baseten.co/v1/models/XXXXXXXX/deployments/production/autoscaling_settings"
)
_ALLOW_LISTS = ("ip_allow_list", "fqdn_allow_list")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrussPlan:
    """The contents of a new Truss.

    Attributes:
        name: `model_name`.
        origin: the engine as given by the user.
        kind: what is served, such as "a TensorRT-LLM engine".
        runtime: the image.
        place: the GPUs; None for the CPU.
        target: requests to send at once; None if unknown.
        weights: section of config.yaml; empty if nothing is mounted.
        startup_s: `runtime.health_checks.startup_threshold_seconds`.
        instance_type: `resources.instance_type`, instead of GPUs.
        egress: the container may reach other hosts.
        truss_version: the release of Truss's server to pin; None leaves it to `truss push`.
        own_server: use this project's server instead of Truss's.
        converts: the image's conversion scripts need separate packages.
        engine_bytes: size of a CPU engine; 0 if unknown.
        wheels: wheels installed without dependencies.
        requirements: lines added to requirements.txt.
        metadata: `model_metadata`, usually without its example.
        config: changes to the rest of config.yaml.
        takes_messages: the tokenizer has a chat template.
        notes: information for the user, one or two sentences each.
        findings: findings that `check` reports too.
        check: reports problems of config.yaml, given its contents.
        remarks: comments on lines of config.yaml, by line.
        folders: local repositories, which `truss push` leaves behind.
        consent: what `trust_remote_code` allows, and who allowed it; empty without it.
    """

    name: str
    origin: str
    kind: str
    runtime: BaseImage
    place: Place | None
    target: ConcurrencyTarget | None = None
    weights: Sequence[Mapping[str, Any]] = ()
    startup_s: int
    instance_type: str | None = None
    egress: bool = True
    truss_version: str | None = None
    own_server: bool = False
    converts: bool = False
    engine_bytes: int = 0
    wheels: Sequence[str] = ()
    requirements: Sequence[str] = ()
    metadata: Mapping[str, Any]
    config: Mapping[str, Any] = field(default_factory=dict)
    takes_messages: bool = False
    notes: Sequence[str] = ()
    findings: Sequence[Diagnostic] = ()
    check: Callable[[Mapping[str, Any]], Sequence[Diagnostic]] = lambda _: ()
    remarks: Mapping[str, str] = field(default_factory=dict)
    folders: Sequence[str] = ()
    consent: str = ""

    @property
    def example(self) -> dict[str, Any]:
        """A request body."""
        question: dict[str, Any] = {"prompt": _QUESTION}
        if self.takes_messages:
            question = {"messages": [{"role": "user", "content": _QUESTION}]}
        return {**question, "max_tokens": _MAX_TOKENS}

    @property
    def resources(self) -> dict[str, Any]:
        if self.instance_type is not None:
            return {"instance_type": self.instance_type}
        if self.place is not None:
            return {"accelerator": self.place.accelerator, "use_gpu": True}
        needed = max(_CPU_FLOOR_BYTES, 2 * self.engine_bytes + 2 * _GIB)
        return {"cpu": _CPU_CORES, "memory": f"{-(-needed // _GIB)}Gi", "use_gpu": False}

    @property
    def runtime_keys(self) -> dict[str, Any]:
        """`runtime` of config.yaml."""
        return {
            "predict_concurrency": predict_concurrency(self.target),
            "health_checks": {"startup_threshold_seconds": self.startup_s},
            **({"truss_server_version_override": self.truss_version} if self.truss_version else {}),
            **({} if self.egress else {"egress_restrictions": {key: [] for key in _ALLOW_LISTS}}),
        }

    @property
    def runtime_reason(self) -> str:
        reasons = [
            "The engine batches in flight, so predict_concurrency must never be the bottleneck.",
            "The startup threshold is longer than this server's own limit, so you see this "
            "server's error instead of a timeout.",
        ]
        if self.truss_version:
            reasons.append(
                "The version of Truss's server is the one that trtllm-truss is tested with."
            )
        if not self.egress:
            reasons.append("Empty lists block all connections from the container.")
        return " ".join(reasons)


def description(kind: str) -> str:
    """Return `description` of config.yaml."""
    return f"{_first_upper(kind)} behind Triton."


def config_text(plan: TrussPlan) -> str:
    """Return config.yaml."""
    header = (
        f"Written by `trtllm-truss init {plan.origin}` of trtllm-truss {__version__}: {plan.kind}. "
        "`trtllm-truss check` compares it with the engine, `truss push` deploys it."
    )
    resources_reason = (
        "" if plan.place is None else f"{plan.place.accelerator}: {plan.place.reason}"
    )
    base_image = plan.runtime.section
    commands = build_commands(plan.wheels)
    reasons = ["Wheels used as archives; pip compares their hashes."] if commands else []
    if plan.converts:
        commands.append(INSTALL_COMMAND)
        reasons.append("Versions for the conversion scripts, which requirements.txt replaces.")
    sections: list[tuple[str, dict[str, Any]]] = [
        (
            header,
            {
                "model_name": plan.name,
                "description": description(plan.kind),
                "python_version": plan.runtime.python,
            },
        ),
        (plan.runtime.reason, {"base_image": base_image}) if base_image else ("", {}),
        ("", {"requirements_file": "./requirements.txt"}),
        (" ".join(reasons), {"build_commands": commands}) if commands else ("", {}),
        (
            "",
            {
                "model_class_name": "Model",
                "model_module_dir": "model",
                "bundled_packages_dir": "packages",
                "data_dir": "data",
            },
        ),
        (resources_reason, {"resources": plan.resources}),
        (
            "Without a mount, engines come from Hugging Face as fast as the network allows.",
            {"environment_variables": {"HF_XET_HIGH_PERFORMANCE": "1"}},
        ),
        (
            "Baseten mounts these files before the container starts; elsewhere the start downloads "
            "them.",
            {"weights": [*plan.weights]},
        )
        if plan.weights
        else ("", {}),
        (
            "This project's server instead of Truss's, with the same routes and more.",
            {"docker_server": own_server_section(plan.runtime.executable)},
        )
        if plan.own_server
        else ("", {}),
        (plan.runtime_reason, {"runtime": plan.runtime_keys}),
        (
            "Only for private or gated repositories; set the value in the workspace, never here.",
            {"secrets": {ACCESS_TOKEN_SECRET: None}},
        ),
        (
            plan.consent,
            {
                "model_metadata": {
                    "tags": ["text-generation"],
                    "example_model_input": plan.example,
                    **plan.metadata,
                }
            },
        ),
    ]
    others = dict(plan.config)
    if "resources" in others:  # its accelerator is in the plan
        others["resources"] = {**others["resources"], **plan.resources}
    for _, values in sections:
        values |= {
            key: merged(values, {key: others.pop(key)})[key] for key in values if key in others
        }
    sections.append(("From the settings that were imported.", others))
    text = "\n".join(comment(reason) + _yaml(values) for reason, values in sections if values)
    return _with_remarks(text, plan.remarks)


def _with_remarks(text: str, remarks: Mapping[str, str]) -> str:
    """Put remarks after the last lines that they refer to."""
    lines = text.splitlines()
    for line, remark in remarks.items():
        places = [place for place, each in enumerate(lines) if each.strip() == line]
        if places:
            lines[places[-1]] += f"  # {_one_line(remark)}"
    return "\n".join([*lines, ""])


def readme_text(plan: TrussPlan) -> str:
    """Return README.md."""
    body = shlex.quote(json.dumps(plan.example))
    reasons = [f"**Image.** {_first_upper(plan.runtime.reason)}"]
    if plan.place is not None:
        reasons.append(f"**Accelerator.** {plan.place.accelerator}: {plan.place.reason}")
    reasons += [f"**Consent.** {plan.consent}"] if plan.consent else []
    reasons += [*plan.notes, *(finding.message for finding in plan.findings)]
    bullets = "\n".join(
        textwrap.fill(
            _one_line(text), _WIDTH, initial_indent="- ", subsequent_indent="  ", **_WHOLE_WORDS
        )
        for text in reasons
    )
    intro = _filled(
        f"A Truss for {plan.kind}, written by trtllm-truss {__version__} from "
        f"`{_one_line(plan.origin)}`. `config.yaml` has the settings."
    )
    return f"""# {plan.name}

{intro}

## Deploy

{_deployment(plan)}

## Raise the concurrency target

{_filled(_about_target(plan))}

```
$ curl -X PATCH {_AUTOSCALING} \\
    -H "Authorization: Api-Key $BASETEN_API_KEY" \\
    -d '{{"concurrency_target": {plan.target.requests if plan.target else "N"}}}'
```

## Send a request

```
$ curl -N https://model-XXXXXXXX.api.baseten.co/production/predict \\
    -H "Authorization: Api-Key $BASETEN_API_KEY" \\
    -d {body}
```

## On a machine of your own

```
$ trtllm-truss check    # what does not fit
$ trtllm-truss serve    # in NVIDIA's image, or on a CPU with the Triton wheel
$ curl -N localhost:8080/v1/models/model:predict -d {body}
```

## Why these values

{bullets}
"""


def merged(config: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return a configuration with changes; sections are merged."""
    result = dict(config)
    for key, value in changes.items():
        section = result.get(key)
        if isinstance(section, Mapping) and isinstance(value, Mapping):
            value = merged(section, value)
        result[key] = value
    return result


def next_commands(plan: TrussPlan, folder: str) -> list[str]:
    """Return the next commands to type, in sentences.

    Args:
        folder: folder of the new Truss, quoted for a shell.
    """
    check = f"wrote {folder}; next: trtllm-truss check --truss {folder}"
    serve = "" if plan.place else f", trtllm-truss serve --truss {folder}"
    if plan.folders:
        mounts = " ".join(f"--volume {shlex.quote(f'{each}:{each}:ro')}" for each in plan.folders)
        return [
            f"{check}{serve}",
            f"to deploy: {'; '.join(_uploads(plan))}; or mount in Docker: docker run {mounts} …",
        ]
    if plan.own_server:
        context = f"{SLIM}=true truss image build-context my-context {folder}"
        return [f"{check}{serve}, then {context} && docker build --tag {plan.name} my-context"]
    return [f"{check}{serve}, then truss push {folder}"]


def _uploads(plan: TrussPlan) -> Sequence[str]:
    """Return the commands that replace a plan's folders by repositories."""
    names = ["org/name", "org/tokenizer"]
    uploads = [
        f"hf upload {name} {shlex.quote(each)} ."
        for name, each in zip(names, plan.folders, strict=False)
    ]
    again = "trtllm-truss init org/name"
    return [*uploads, again + (" --tokenizer org/tokenizer" if len(uploads) > 1 else "")]


def _deployment(plan: TrussPlan) -> str:
    """Return the deployment section of README.md."""
    private = (
        f"A private or gated repository needs the secret `{ACCESS_TOKEN_SECRET}` in the workspace."
    )
    push = "```\n$ pip install truss && truss login\n$ truss push\n```\n"
    if not plan.folders:
        return f"{push}\n{private}"
    places = " and ".join(f"`{each}`" for each in plan.folders)
    uploads = "\n".join(f"$ {each}" for each in _uploads(plan))
    reason = _filled(
        f"`truss push` leaves {places} behind. Upload the files, and write the Truss again from "
        "there; or mount the folder at the same path in a container of your own (Docker's "
        "`--volume`)."
    )
    return f"{reason}\n\n```\n{uploads}\n```\n\nThen, in the new folder:\n\n{push}\n{private}"


def _about_target(plan: TrussPlan) -> str:
    number, reason = "the number that `trtllm-truss check` prints once the engine is built", ""
    if plan.target:
        number, reason = str(plan.target.requests), f" It follows from {plan.target.reason}."
    return (
        "Baseten sends a replica one request at a time until this number is raised; it is no key "
        f"of config.yaml. Set it to {number}, in the model's overview under **Replicas**, "
        f"**Configure**, or by the API.{reason} With longer requests choose less."
    )


def _filled(text: str) -> str:
    return textwrap.fill(text, _WIDTH, **_WHOLE_WORDS)


def comment(text: str) -> str:
    """Return a text as lines of comments; empty for an empty one."""
    if not text:
        return ""
    lines = textwrap.wrap(_first_upper(_one_line(text)), _WIDTH - 2, **_WHOLE_WORDS)
    return "".join(f"# {line}\n" for line in lines)


def _yaml(values: Mapping[str, Any]) -> str:
    return yaml.safe_dump(values, sort_keys=False, allow_unicode=True, width=_WIDTH)


def _first_upper(text: str) -> str:
    return text if text[:1].isupper() else text[:1].upper() + text[1:]


def _one_line(text: str) -> str:
    """Drop line breaks and control characters, because names come from other people's engines."""
    return "".join(letter if letter.isprintable() else "?" for letter in " ".join(text.split()))
