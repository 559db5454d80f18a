"""Truss keys that Truss accepts but that would make a deployment fail.

Sources, November 2026: keys and defaults are those of truss/base/truss_config.py, 0.18.35; the
image's tags and interpreters those of `engines.host` and docs/deploy.md.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from trtllm_truss.cli.baseten import LONGEST_STARTUP_S, Need
from trtllm_truss.engines.diagnostics import Diagnostic, warning
from trtllm_truss.engines.engine import Engine
from trtllm_truss.engines.images import PINNED_IMAGE, find_image
from trtllm_truss.errors import RequestError
from trtllm_truss.protocols.predict import parse_predict
from trtllm_truss.settings.loading import ACCESS_TOKEN_SECRET, API_KEY_SECRET
from trtllm_truss.settings.model import Mount, Settings
from trtllm_truss.validation import did_you_mean, holds_credential, shown, shown_name

_FOLDERS = ("model_module_dir", "bundled_packages_dir", "data_dir")
_REQUIREMENTS = "requirements_file"
_TRITON = "nvcr.io/nvidia/tritonserver:"
_FLAVOUR = "-trtllm-python-py3"
_PYTHON = "/usr/bin/python3"
_AUTH = "auth_secret_name"
_EXAMPLE = "example_model_input"
_FREE_TEXTS = {
    *("model_metadata", "environment_variables", "secrets"),
    *("build_commands", "description", "docker_server"),
}
"""Sections with texts that are not names, or that are checked elsewhere."""
_SECRET = re.compile(r"[A-Za-z0-9_.-]+")
_PYTHONS = ("py310", "py311", "py312", "py313")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_MEMORY = re.compile(r"(\d+(?:\.\d+)?)(|k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei)")
_UNITS = {"": 1, **{unit: 1000**n for n, unit in enumerate("kMGTPE", 1)}}
_UNITS |= {f"{unit}i": 1024**n for n, unit in enumerate("KMGTPE", 1)}
_LEAST_MEMORY_BYTES = 1 << 30
_MOST_CPUS = 512
_OWN_PLACES = tuple(map(PurePosixPath, ("/app", "/packages", "/usr")))
_OTHER_NAMES = {"hf_token", "huggingface_token", "hugging_face_token", "hugging_face_hub_token"}


def check_deployment(
    config: Mapping[str, Any],
    settings: Settings,
    engine: Engine | None,
    needs: Sequence[Need],
    truss: Path | None,
) -> Iterator[Diagnostic]:
    """Yield values that Truss accepts but that would make a deployment fail, or be ignored.

    Args:
        config: the parsed config.yaml.
        settings: `model_metadata`.
        engine: None if the start builds it, or it is inspected later.
        needs: the files that its start reads.
        truss: folder of config.yaml; None for a file that replaces it.
    """
    if truss is not None:
        yield from _check_folder(config, truss)
    yield from _check_python(config, engine)
    yield from _check_secrets(config)
    yield from _check_variables(config)
    yield from _check_sizes(config, engine)
    yield from _check_blanks(_names_of(config))
    yield from _check_sources(config)
    yield from _check_example(config)
    for mount in settings.mounts:
        yield from _check_mount(mount, settings, needs)


def _check_folder(config: Mapping[str, Any], truss: Path) -> Iterator[Diagnostic]:
    """Yield missing files of the Truss that its keys refer to."""
    named = config.get(_REQUIREMENTS)
    if isinstance(named, str) and not (truss / named).is_file():
        yield warning("no_file", _not_here(_REQUIREMENTS, named, truss, Path.is_file))
    elif named is None and not config.get("requirements") and (truss / "requirements.txt").exists():
        yield warning(
            "no_requirements",
            f"config.yaml: {_REQUIREMENTS} is missing, so that the image gets none of this "
            f"server's packages; set it to ./requirements.txt.",
        )
    for key in _FOLDERS:
        named = config.get(key)
        if isinstance(named, str) and not (truss / named).is_dir():
            yield warning("no_folder", _not_here(key, named, truss, Path.is_dir))
    name, module = config.get("model_class_name", "Model"), config.get("model_module_dir", "model")
    file = truss / str(module) / str(config.get("model_class_filename", "model.py"))
    if config.get("docker_server") is None and file.is_file():
        classes = _classes_of(file)
        if classes is not None and name not in classes:
            yield warning(
                "no_class",
                f"config.yaml: model_class_name is {shown(name)}, but {module}/{file.name} has "
                f"{', '.join(classes) or 'no class'}; correct one of the names.",
            )


def _not_here(key: str, named: str, truss: Path, is_one: Callable[[Path], bool]) -> str:
    here = [path.name for path in truss.iterdir() if is_one(path)]
    meant = did_you_mean(PurePosixPath(named).name, here)
    remedy = f"did you mean {meant}?" if meant else "correct it, or put it there."
    return f"config.yaml: {key} is {shown(named)}, which is not in the Truss's folder; {remedy}"


def _classes_of(file: Path) -> list[str] | None:
    try:
        body = ast.parse(file.read_bytes()).body
    except (SyntaxError, ValueError, OSError):
        return None
    return [each.name for each in body if isinstance(each, ast.ClassDef)]


def _check_python(config: Mapping[str, Any], engine: Engine | None) -> Iterator[Diagnostic]:
    version = config.get("python_version")
    if isinstance(version, str) and version not in _PYTHONS:
        yield warning(
            "python_version",
            f"config.yaml: python_version is {shown(version)}; this server runs on "
            f"{', '.join(_PYTHONS)}: choose one.",
        )
    base = config.get("base_image")
    image = base.get("image") if isinstance(base, Mapping) else None
    if isinstance(base, Mapping) and isinstance(image, str):
        if image.startswith(_TRITON):
            needs_tensorrt_llm = engine is None or engine.uses_gpus
            yield from _check_triton_image(image, base, version, needs_tensorrt_llm)
    elif engine is not None and not engine.uses_gpus and not _installs(config, engine.wheels):
        yield warning(
            "no_triton_wheel",
            f"config.yaml: neither build_commands nor requirements install "
            f"{' and '.join(engine.wheels)}, and base_image is missing: the image would have no "
            "Triton; take build_commands from examples/smollm2-135m-cpu.",
        )


def _check_triton_image(
    image: str, base: Mapping[str, Any], version: object, needs_tensorrt_llm: bool
) -> Iterator[Diagnostic]:
    tag = image.removeprefix(_TRITON).partition("@")[0].strip()
    if needs_tensorrt_llm and not tag.endswith(_FLAVOUR):
        yield warning(
            "image_without_tensorrt_llm",
            f"config.yaml: base_image.image is {shown(image)}: of NVIDIA's Triton images only "
            f"those with {_FLAVOUR} have TensorRT-LLM; set it, such as {PINNED_IMAGE.name}.",
        )
    python = base.get("python_executable_path")
    if python != _PYTHON:
        state = "missing" if python is None else shown(python)
        yield warning(
            "python_executable_path",
            f"config.yaml: base_image.python_executable_path is {state}; set it to {_PYTHON}, the "
            "Python for which the image has Triton and TensorRT-LLM.",
        )
    known = find_image(image.strip())
    own = f"py{known.python.replace('.', '')}" if known else version
    if version in _PYTHONS and version != own:
        yield warning(
            "python_version",
            f"config.yaml: python_version is {version}, but the server gets the image's Python, "
            f"{own}; set it to that.",
        )


def _installs(config: Mapping[str, Any], packages: Sequence[str]) -> bool:
    told = " ".join(map(str, [config.get("build_commands"), config.get("requirements")]))
    return all(package in told for package in packages)


def _check_secrets(config: Mapping[str, Any]) -> Iterator[Diagnostic]:
    secrets = config.get("secrets")
    if not isinstance(secrets, Mapping):
        return
    for name in secrets:
        if not isinstance(name, str):
            continue
        if holds_credential(name):
            yield warning(
                "token_in_file",
                "config.yaml: the name of a secret looks like a token, which `truss push` uploads; "
                f"declare {ACCESS_TOKEN_SECRET}: null, and set the value in the workspace.",
            )
            continue
        if not _SECRET.fullmatch(name.strip()):
            yield warning(
                "secret_name",
                f"config.yaml: secrets.{shown_name(name)} is not a valid name of a file in "
                "/secrets; write letters, digits, _, - and dots.",
            )
        plain = name.strip().lower().replace("-", "_")
        for known in (ACCESS_TOKEN_SECRET, API_KEY_SECRET):
            is_other = known == ACCESS_TOKEN_SECRET and plain in _OTHER_NAMES
            if known not in secrets and name != known and (plain == known or is_other):
                yield warning(
                    "secret_name",
                    f"config.yaml: secrets.{shown_name(name)} is not used here; did you "
                    f"mean {known}?",
                )


def _check_variables(config: Mapping[str, Any]) -> Iterator[Diagnostic]:
    variables = config.get("environment_variables")
    if not isinstance(variables, Mapping):
        return
    for name, value in variables.items():
        place = f"environment_variables.{shown_name(str(name))}"
        if not _VARIABLE.fullmatch(str(name)):
            yield warning(
                "variable_name",
                f"config.yaml: {place} is not a variable name; write letters, digits and _.",
            )
        if value is None or isinstance(value, (bool, Mapping, list)):
            yield warning(
                "variable_value",
                f"config.yaml: {place} is not a text; write its value in quotes.",
            )


def _names_of(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the texts in the file that are names."""
    names = {key: value for key, value in config.items() if key not in _FREE_TEXTS}
    metadata = config.get("model_metadata") or {}
    names["model_metadata"] = {
        key: value for key, value in metadata.items() if key.endswith(("_repository", "_revision"))
    }
    return names


def _check_blanks(value: Any, place: str = "") -> Iterator[Diagnostic]:
    """Yield names surrounded by blanks, which only some readers of the file strip."""
    if isinstance(value, Mapping):
        for name, each in value.items():
            yield from _check_blanks(each, f"{place}.{name}".lstrip("."))
    elif isinstance(value, list):
        for number, each in enumerate(value):
            yield from _check_blanks(each, f"{place}[{number}]")
    elif isinstance(value, str) and value != value.strip(" \t"):
        yield warning("blanks", f"config.yaml: {place} has blanks around it; remove them.")


def _check_sources(config: Mapping[str, Any]) -> Iterator[Diagnostic]:
    """Yield secrets of `weights` that the file does not declare.

    The workspace may not have them.
    """
    weights, secrets = config.get("weights"), config.get("secrets")
    declared = secrets if isinstance(secrets, Mapping) else {}
    for number, source in enumerate(weights if isinstance(weights, list) else ()):
        auth = source.get("auth") if isinstance(source, Mapping) else None
        for key, section in (("", source), (".auth", auth)):
            name = section.get(_AUTH) if isinstance(section, Mapping) else None
            if isinstance(name, str) and name not in declared:
                yield warning(
                    "secret_undeclared",
                    f"config.yaml: weights[{number}]{key}.{_AUTH} is {shown(name)}, which secrets "
                    "does not declare, and the workspace must have; correct it, or add "
                    f"{shown_name(name)}: null to secrets.",
                )


def _check_example(config: Mapping[str, Any]) -> Iterator[Diagnostic]:
    """Yield parts of the example on the platform's model page that this server would refuse."""
    example = (config.get("model_metadata") or {}).get(_EXAMPLE)
    if not isinstance(example, Mapping) or "inputs" in example:  # LMI's body
        return
    try:
        parse_predict(example, {})
    except RequestError as problem:
        yield warning(
            "example_refused",
            f"config.yaml: model_metadata.{_EXAMPLE} would be refused: {problem.message}",
        )


def _check_sizes(config: Mapping[str, Any], engine: Engine | None) -> Iterator[Diagnostic]:
    resources = config.get("resources")
    resources = resources if isinstance(resources, Mapping) else {}
    is_given = resources.keys() & {"cpu", "memory", "instance_type"}
    if engine is not None and not engine.uses_gpus and not is_given:
        yield warning(
            "no_resources",
            "config.yaml: resources.cpu and resources.memory are missing, so that the model gets 1 "
            'CPU and 2Gi; set them, such as cpu: "4" and memory: 8Gi.',
        )
    uses_gpus = engine is None or engine.uses_gpus
    has_gpus = bool(resources.get("accelerator") or resources.get("instance_type"))
    if uses_gpus is has_gpus and resources.get("use_gpu", uses_gpus) is not uses_gpus:
        yield warning(
            "use_gpu",
            f"config.yaml: resources.use_gpu is {shown(resources['use_gpu'])}, which Truss ignores "
            f"for resources.accelerator; set it to {shown(uses_gpus)}.",
        )
    memory, cpu = resources.get("memory"), resources.get("cpu")
    found = _MEMORY.fullmatch(memory) if isinstance(memory, str) else None
    if found and float(found[1]) * _UNITS[found[2]] < _LEAST_MEMORY_BYTES:
        yield warning(
            "little_memory",
            f"config.yaml: resources.memory is {shown(memory)}, less than 1 GiB; write a unit, "
            "such as 16Gi.",
        )
    if isinstance(cpu, str) and re.fullmatch(r"\d{1,9}", cpu) and int(cpu) > _MOST_CPUS:
        yield warning(
            "many_cpus",
            f"config.yaml: resources.cpu is {shown(cpu)}; it counts cores: write 4 for 4000m.",
        )
    runtime = config.get("runtime")
    checks = runtime.get("health_checks") if isinstance(runtime, Mapping) else None
    threshold = checks.get("startup_threshold_seconds") if isinstance(checks, Mapping) else None
    if isinstance(threshold, int) and threshold > LONGEST_STARTUP_S:
        yield warning(
            "startup_limit",
            "config.yaml: runtime.health_checks.startup_threshold_seconds is "
            f"{threshold}; Baseten's limit is {LONGEST_STARTUP_S} (seconds): lower it.",
        )


def _check_mount(mount: Mount, settings: Settings, needs: Sequence[Need]) -> Iterator[Diagnostic]:
    place = PurePosixPath(mount.place)
    hidden = next((own for own in _OWN_PLACES if _overlap(place, own)), None)
    if hidden is not None:
        yield warning(
            "mount_hides",
            f"config.yaml: the mount_location {mount.place} of {mount.source} in weights hides "
            f"{hidden} of the image; choose a folder of its own, such as /models/engine.",
        )
    names = [settings.engine_repository, settings.tokenizer_repository]
    names += [each.repository for each in needs]
    if needs and not any(_serves(mount, name) for name in names if name):
        yield warning(
            "mount_unused",
            f"config.yaml: no setting names {mount.source} of weights, so that nothing reads it; "
            f"this server reads {', '.join(dict.fromkeys(each.repository for each in needs))}.",
        )


def _overlap(place: PurePosixPath, own: PurePosixPath) -> bool:
    return place.is_relative_to(own) or own.is_relative_to(place)


def _serves(mount: Mount, repository: str) -> bool:
    return mount.folder_of(repository) is not None or Path(repository).is_relative_to(mount.place)
