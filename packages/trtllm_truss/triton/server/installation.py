"""One folder with every backend: the server's, ours and those of the operator."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from trtllm_truss.engines.kinds import own_backends
from trtllm_truss.errors import TritonError
from trtllm_truss.machine.triton import TritonInstallation

BACKENDS_VARIABLE = "TRITON_BACKEND_DIRECTORY"


def assemble_backends(
    installation: TritonInstallation, folder: Path, environ: Mapping[str, str] | None = None
) -> Path:
    """Fill one folder with links to every backend, since Triton accepts a single folder.

    The folder is created, or emptied of earlier links, and returned. A backend of
    ``TRITON_BACKEND_DIRECTORY`` wins over one of ours with the same name, and ours over the
    server's.

    Raises:
        TritonError: ``TRITON_BACKEND_DIRECTORY`` is not a folder.
    """
    environ = os.environ if environ is None else environ
    backends = {**_backends_of(installation.backends), **own_backends()}
    if override := environ.get(BACKENDS_VARIABLE):
        if not Path(override).is_dir():
            raise TritonError(
                f"{BACKENDS_VARIABLE}={override} is not a folder. "
                "Name a folder that holds Triton backends, or unset it."
            )
        backends |= _backends_of(Path(override).resolve())
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for name, source in backends.items():
        if name == "python" and source.parent == installation.backends and installation.stub:
            _link_python_backend(source, installation.stub, folder / name)
        else:
            (folder / name).symlink_to(source)
    return folder


def _backends_of(folder: Path) -> dict[str, Path]:
    """Return the backends in a folder, by name; none without the folder."""
    paths = sorted(folder.iterdir()) if folder.is_dir() else ()
    return {
        path.name: path for path in paths if path.is_dir() and not path.name.startswith(("_", "."))
    }


def _link_python_backend(backend: Path, stub: Path, folder: Path) -> None:
    folder.mkdir()
    for file in (*backend.iterdir(), stub):
        if file.is_file():
            # Copied: Triton refuses a library whose real path lies outside the backend's folder.
            shutil.copy2(file, folder / file.name)
