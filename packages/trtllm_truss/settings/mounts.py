"""Files that the platform puts into a container before it starts: `weights` and `bdn.mounts`.

Source of keys and schemes: ``WeightsSource`` and ``BDNVolumeMount`` in truss/base/truss_config.py,
0.18.35. Truss validates both sections; entries of another shape are left out here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

_HUB = "hf://"
VOLUME = "bdn:"
MOUNT_ONLY = ("gs://", "azure://", "r2://", "cw://", "https://", VOLUME)
"""Sources that Baseten delivers and this server cannot download."""

_MAIN = "main"


@dataclass(frozen=True, slots=True)
class Mount:
    """One entry.

    Attributes:
        source: its URI, such as ``hf://org/name@<commit>`` or ``bdn:weights/llama:prod``.
        place: the folder in the container; of an ``https://`` source it may be a file.
        allowed: patterns of the files to deliver, as in a Unix shell; none are all.
        ignored: patterns of files to leave out.
    """

    source: str
    place: Path
    allowed: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()

    def delivers(self, path: str) -> bool:
        """Return whether the patterns let a file through, by its path below the source."""
        wanted = not self.allowed or any(fnmatchcase(path, each) for each in self.allowed)
        return wanted and not any(fnmatchcase(path, each) for each in self.ignored)

    @property
    def repository(self) -> str:
        """The source as `engine_repository` names it."""
        return self.source.removeprefix(_HUB).partition("@")[0] if self._is_hub else self.source

    @property
    def revision(self) -> str | None:
        """The revision of a source on Hugging Face; None is the main branch."""
        return self.source.removeprefix(_HUB).partition("@")[2] or None if self._is_hub else None

    def has_revision(self, revision: str | None) -> bool:
        """Compare with a revision of the settings, where None accepts any."""
        return not self._is_hub or revision in (None, self.revision or _MAIN)

    def folder_of(self, repository: str) -> Path | None:
        """Return where a repository is: the mount, or a folder below it; None if elsewhere."""
        own, wanted = self.repository.rstrip("/"), repository.rstrip("/")
        if wanted in (own, str(self.place)):
            return self.place
        if not self._is_hub and wanted.startswith(f"{own}/"):
            return self.place / wanted.removeprefix(f"{own}/")
        return Path(wanted) if Path(wanted).is_relative_to(self.place) else None

    @property
    def _is_hub(self) -> bool:
        return self.source.startswith(_HUB)


def read_mounts(config: Mapping[str, Any]) -> tuple[Mount, ...]:
    """Read `weights` and `bdn.mounts` of a parsed config.yaml."""
    volumes = config.get("bdn")
    mounts = volumes.get("mounts") if isinstance(volumes, Mapping) else None
    return (
        *_entries(config.get("weights"), "mount_location", "allow_patterns", "ignore_patterns"),
        *_entries(mounts, "path", "include", "exclude"),
    )


def _entries(section: Any, place: str, allow: str, ignore: str) -> Iterator[Mount]:
    for entry in section if isinstance(section, list) else ():
        if isinstance(entry, Mapping):
            source, folder = entry.get("source"), entry.get(place)
            if isinstance(source, str) and isinstance(folder, str) and folder.startswith("/"):
                patterns = _texts(entry.get(allow)), _texts(entry.get(ignore))
                yield Mount(source, Path(folder), *patterns)


def _texts(values: Any) -> tuple[str, ...]:
    return tuple(map(str, values)) if isinstance(values, list) else ()
