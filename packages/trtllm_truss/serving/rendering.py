"""Settings and engine become the Triton model repository that serves them."""

from __future__ import annotations

from pathlib import Path

from trtllm_truss.engines.inspection import Engine
from trtllm_truss.errors import SettingsError
from trtllm_truss.settings.model import Settings
from trtllm_truss.triton.repository import check_parameter, render_repository

_TEMPLATE = "triton_model_repository"
_MAX_BATCH_SIZE = "max_batch_size"


def render_engine(settings: Settings, engine: Engine, data_dir: Path, destination: Path) -> Path:
    """Writes the model repository of one engine.

    Args:
        settings: `runtime` is what the operator sets; what an engine fixes is filled in.
        engine: its folder is linked to, never copied.
        data_dir: the Truss's data folder, which holds the template.
        destination: the repository's folder.

    Returns:
        `destination`.

    Raises:
        SettingsError: a parameter is unknown, of the wrong type or out of range.
    """
    return render_repository(
        data_dir / _TEMPLATE,
        destination,
        engine_dir=engine.folder,
        backend=engine.kind.value,
        max_batch_size=_batch_size(settings, engine),
        parameters=_parameters(settings),
    )


def check_runtime(settings: Settings) -> None:
    """Looks at `runtime` alone, without an engine.

    Raises:
        SettingsError: a parameter is unknown, of the wrong type or out of range.
    """
    for name in _parameters(settings):
        check_parameter(name)


def _batch_size(settings: Settings, engine: Engine) -> int:
    wanted = settings.runtime.get(_MAX_BATCH_SIZE)
    if wanted is None:
        return engine.max_batch_size
    if isinstance(wanted, bool) or not isinstance(wanted, int) or wanted < 1:
        raise SettingsError(
            f"config.yaml: model_metadata.runtime.{_MAX_BATCH_SIZE} is {wanted!r}; it must be a "
            "whole number, at least 1."
        )
    return wanted


def _parameters(settings: Settings) -> dict[str, str]:
    """`runtime` as config.pbtxt holds it: every value a text."""
    return {
        name: str(value).lower() if isinstance(value, bool) else str(value)
        for name, value in settings.runtime.items()
        if value is not None and name != _MAX_BATCH_SIZE
    }
