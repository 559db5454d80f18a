"""Determine the settings from an engine's name, or from LMI settings next to it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import Any

from trtllm_truss.artifacts.open_repository import PACKAGE, is_on_hub, open_repository
from trtllm_truss.artifacts.s3 import S3
from trtllm_truss.engines.engine_files import WEIGHTS_SUFFIX
from trtllm_truss.engines.images import IMAGES
from trtllm_truss.engines.kinds import KINDS
from trtllm_truss.errors import SettingsError
from trtllm_workbench.importers.lmi import (
    MOUNTED_MODEL,
    MOUNTS,
    collect_options,
    convert_options,
    is_mounted,
    overridden,
)
from trtllm_workbench.importers.reading import Found, is_source, read_lines, read_sources
from trtllm_workbench.importers.rules import Outcome, Row

PROPERTIES = "serving.properties"

_ENGINE, _BUILD = "engine_repository", "build"
_CHECKPOINT = "checkpoint_repository"
_FILES_OF_ENGINES = (".json", WEIGHTS_SUFFIX, *(end for kind in KINDS for end in kind.suffixes))
_MAX_PROPERTIES_BYTES = 1 << 20
_FOLDERS = ("/", ".", "~")


@dataclass(frozen=True, slots=True)
class Origin:
    """The settings of an engine before it is read.

    Attributes:
        metadata: keys of `model_metadata`, not validated.
        rows: the outcome of each imported option; empty without settings to import.
        ignored: options overridden by another spelling.
        consent: where the operator allowed code to run; empty if nowhere.
        config: keys of config.yaml besides `model_metadata`.
    """

    metadata: dict[str, Any]
    rows: tuple[Row, ...] = ()
    ignored: tuple[str, ...] = ()
    consent: str = ""
    config: Mapping[str, Any] = field(default_factory=dict)

    @property
    def accelerator(self) -> str | None:
        """`resources.accelerator` of imported settings."""
        resources = self.config.get("resources") or {}
        return resources.get("accelerator")


def read_origin(engine: str, gpus: int | None, token: str | None) -> Origin:
    """Resolve an engine's name; read `serving.properties` if there is one.

    A file given by the user carries the user's consent; one found inside a repository does not.

    Args:
        engine: `org/name` (with `@` and a revision, if any), `s3://…`, a folder, `package://…`, or
            a file: a serving.properties, variables of an LMI container, or one of the engine's. It
            may also be another server's settings, in a file or folder, or a command line.
        gpus: value of LMI's `tensor_parallel_degree=max`.
        token: the Hugging Face access token.

    Raises:
        SettingsError: the name is ambiguous, or the LMI settings are invalid.
        ArtifactError: the repository cannot be listed.
    """
    if is_source(engine):
        return _imported(read_sources([engine]))
    file = Path(engine).expanduser()
    if "://" not in engine and file.is_file():
        if not file.name.endswith(_FILES_OF_ENGINES):
            place = file.resolve().parent
            return _from_lmi(
                _read_properties(file),
                str(place),
                None,
                gpus,
                named_file=file,
                holds_checkpoint=_holds_checkpoint(beside.name for beside in place.iterdir()),
            )
        engine = str(file.resolve().parent)
    repository, revision = locate(engine, "ENGINE")
    source = open_repository(repository, revision, setting="ENGINE", token=token)
    size = source.listing().sizes.get(PROPERTIES)
    if size:
        name = f"{PROPERTIES} of {source.name}"
        if size > _MAX_PROPERTIES_BYTES:
            raise SettingsError(f"{name} has {size:,} bytes; name the folder of LMI's settings.")
        values = read_lines(_decoded(source.read(PROPERTIES), name), name)
        holds_checkpoint = _holds_checkpoint(source.listing().sizes)
        return _from_lmi(values, repository, revision, gpus, holds_checkpoint=holds_checkpoint)
    return Origin(_named(repository, revision))


def locate(name: str, option: str) -> tuple[str, str | None]:
    """Return a repository in the form of config.yaml, and its revision.

    A folder becomes absolute, since the Truss may be anywhere.

    Args:
        name: as typed.
        option: option it was given for, for messages.

    Raises:
        SettingsError: it is both a repository on the Hub and a folder.
    """
    bare, _, revision = name.partition("@")
    if is_on_hub(bare):
        if Path(bare).is_dir():
            raise SettingsError(
                f"{option} is {name!r}, a repository on Hugging Face and also a folder here; write "
                f"./{bare} for the folder, or run the command elsewhere for the repository."
            )
        return bare, revision or None
    if name.startswith(_FOLDERS) or (name and "://" not in name and Path(name).is_dir()):
        return str(Path(name).expanduser().resolve()), None
    return name, None


def is_folder(repository: str) -> bool:
    return not (is_on_hub(repository) or repository.startswith((S3, PACKAGE)))


def _imported(found: Found) -> Origin:
    """Convert another server's settings, which the user named."""
    version = None if found.kind == "triton" else IMAGES[-1].tensorrt_llm
    result = found.convert(version)
    consent = f"by {found.origin}" if result.metadata.get("trust_remote_code") else ""
    return Origin(result.metadata, result.rows, tuple(found.ignored), consent, result.config)


def _from_lmi(
    values: dict[str, str],
    place: str,
    revision: str | None,
    gpus: int | None,
    *,
    holds_checkpoint: bool,
    named_file: Path | None = None,
) -> Origin:
    """Convert the settings of `named_file` or, without one, those inside the repository `place`."""
    given = collect_options(values)
    if not given:
        return Origin(_named(place, revision))
    imported = convert_options(
        given, gpus, of_repository=named_file is None, beside_checkpoint=holds_checkpoint
    )
    metadata = dict(imported.metadata)
    section, key = (metadata[_BUILD], _CHECKPOINT) if _BUILD in metadata else (metadata, _ENGINE)
    found, is_here = _within(place, str(section.get(key, MOUNTED_MODEL)))
    section[key] = found
    if is_here and revision is not None:
        section[key.replace("repository", "revision")] = revision
    rows = tuple(map(_without_gpus, imported.rows)) if gpus is None else imported.rows
    consent = f"by {named_file}" if metadata.get("trust_remote_code") else ""
    return Origin(metadata, rows, tuple(overridden(values, given)), consent)


def _holds_checkpoint(names: Iterable[str]) -> bool:
    return any(name.endswith(WEIGHTS_SUFFIX) and "/" not in name for name in names)


def _without_gpus(row: Row) -> Row:
    """Replace the outcome of `tensor_parallel_degree=max`, which needs a number of GPUs."""
    if row.outcome is not Outcome.UNSUPPORTED or row.value.lower() != "max":
        return row
    detail = "init chooses the number of GPUs, or --accelerator NAME:N sets it"
    return replace(row, outcome=Outcome.NOT_NEEDED, detail=detail)


def _within(place: str, model: str) -> tuple[str, bool]:
    """Replace SageMaker's mount folder by its origin; return True if it was one."""
    if not is_mounted(model):
        return locate(model, "option.model_id")[0], False
    if model.rstrip("/") in MOUNTS:
        return place, True
    below = PurePosixPath(model).relative_to(MOUNTED_MODEL if model.startswith("/") else ".")
    if is_on_hub(place) or ".." in below.parts:
        raise SettingsError(
            f"option.model_id is {model!r}, a folder inside {place!r}; name that folder's own "
            "repository as ENGINE."
        )
    return f"{place.rstrip('/')}/{below}", True


def _named(repository: str, revision: str | None) -> dict[str, Any]:
    return {_ENGINE: repository, **({"engine_revision": revision} if revision else {})}


def _read_properties(file: Path) -> dict[str, str]:
    if file.stat().st_size > _MAX_PROPERTIES_BYTES:
        raise SettingsError(
            f"ENGINE is {str(file)!r}, which is too large for LMI settings; name the folder or the "
            "repository of the engine."
        )
    try:
        return read_lines(_decoded(file.read_bytes(), str(file)), str(file))
    except OSError as error:
        raise SettingsError(f"ENGINE: {file} cannot be read: {error}.") from None


def _decoded(data: bytes, name: str) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        raise SettingsError(f"{name} is not text in UTF-8; save it as such.") from None
