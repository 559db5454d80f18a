"""Every key under `model_metadata` in config.yaml, with its type, default, range and sentence."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

Repository = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]
RuntimeValue = bool | int | float | str | None


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Serving(_Section):
    """Our own limits, none of which the engine knows."""

    start_timeout_s: float = Field(
        1500,
        gt=0,
        le=86400,
        description="Seconds from starting Triton until the engine must be ready. Baseten gives a "
        "replica 30 minutes in all.",
    )
    hang_timeout_s: float = Field(
        60,
        ge=1,
        le=86400,
        description="Seconds with requests in flight and not one token for any of them, after "
        "which the engine counts as hung: its requests fail and it is restarted.",
    )
    restart_limit: int = Field(
        5,
        ge=0,
        le=100,
        description="Restarts of an engine that died or hung, without one answered request in "
        "between; after them the process ends with an error, so that the platform replaces it.",
    )
    restart_backoff_s: float = Field(
        1.0,
        ge=0,
        le=600,
        description="Seconds before the second restart in a row; each further one waits twice as "
        "long. The first comes at once.",
    )
    drain_timeout_s: float = Field(
        30,
        ge=0,
        le=3600,
        description="Seconds that running requests may take to finish after SIGTERM.",
    )


class Settings(_Section):
    """`model_metadata`, checked: what to serve and how."""

    tensor_parallelism: int = Field(
        1, ge=1, le=64, description="GPUs that one layer is split over; must equal the engine's."
    )
    pipeline_parallelism: int = Field(
        1,
        ge=1,
        le=64,
        description="Groups of layers on different GPUs; must equal the engine's. "
        "GPUs = tensor_parallelism × pipeline_parallelism.",
    )
    engine_repository: Repository = Field(
        description="The flat engine repository: `org/name` on Hugging Face, a local folder "
        "(`/…`, `./…`, `~/…`), or `package://NAME`, the folder of an installed Python package.",
    )
    engine_revision: Repository | None = Field(
        None, description="Branch, tag or commit of engine_repository; null is its main branch."
    )
    tokenizer_repository: Repository | None = Field(
        None,
        description="Where the tokenizer files are, in the same forms; null means beside the "
        "engine.",
    )
    tokenizer_revision: Repository | None = Field(
        None, description="Branch, tag or commit of tokenizer_repository."
    )
    runtime: dict[str, RuntimeValue] = Field(
        default_factory=dict,
        description="Parameters of Triton's `tensorrt_llm` model by their config.pbtxt names, and "
        "`max_batch_size` and `instance_count` (copies of a one-GPU engine that share the GPU).",
    )
    generation: dict[str, Any] = Field(
        default_factory=dict,
        description="Defaults for request fields, by the names of the predict body.",
    )
    serving: Serving = Field(default_factory=lambda: Serving(), description="Our own limits.")


PLATFORM_KEYS = frozenset(
    {
        "avatar_url",
        "cover_image_url",
        "description",
        "example_model_input",
        "pretty_name",
        "repo_id",
        "tags",
        "main_repo_id",
        "openai_model_name",
    }
)
"""Keys of `model_metadata` that Baseten reads for itself; they pass unread."""
