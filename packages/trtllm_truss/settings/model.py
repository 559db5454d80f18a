"""Every key under `model_metadata` in config.yaml, with its type, default, range and sentence."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, StringConstraints, ValidationInfo, field_validator
from pydantic_core import PydanticCustomError

from trtllm_truss.settings.build import Build
from trtllm_truss.settings.runtime import RuntimeOptions
from trtllm_truss.settings.section import Repository
from trtllm_truss.validation import Strict

VariableName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]


class Serving(Strict):
    """Our own limits, none of which the engine knows."""

    start_timeout_s: float = Field(
        1500,
        gt=0,
        le=86400,
        description="Seconds from starting Triton until the engine must be ready. Baseten gives a "
        "replica 30 minutes in all.",
    )
    hang_timeout_s: float = Field(
        120,
        ge=1,
        le=86400,
        description="Seconds with requests in flight and not one token for any of them, or in "
        "which every request failed for want of an engine; after them the engine counts as hung: "
        "its requests fail and it is restarted.",
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
    max_body_bytes: int = Field(
        8 << 20,
        ge=1 << 10,
        le=1 << 30,
        description="Bytes of a request body; a longer one is refused with 413.",
    )
    control_tokens_in_messages: bool = Field(
        False,
        description="Whether special tokens written out in `messages`, such as `</s>`, act "
        "as such; by default they are plain text there, so that no user can write another's turn.",
    )
    queue_limit: int = Field(
        2048,
        ge=0,
        le=100_000,
        description="Requests that may wait for the engine; further ones are refused with 429.",
    )
    queue_timeout_s: float = Field(
        10,
        gt=0,
        le=3600,
        description="Seconds that a request may wait for the engine; one that is foreseen to need "
        "about as long is refused with 429 at once.",
    )
    first_token_timeout_s: float = Field(
        300,
        gt=0,
        le=86400,
        description="Seconds from the end of its wait until a request's first token; after them "
        "it fails with 504.",
    )
    idle_timeout_s: float = Field(
        60,
        gt=0,
        le=86400,
        description="Seconds between two tokens of a request; after them it fails with 504.",
    )
    request_timeout_s: float = Field(
        3600,
        gt=0,
        le=86400,
        description="Seconds that a request may take in all; after them it fails with 504.",
    )
    chunk_interval_ms: float = Field(
        20,
        ge=0,
        le=1000,
        description="The first piece of a stream comes at once; later ones are sent together, at "
        "most this often.",
    )
    keep_alive_s: float = Field(
        15,
        gt=0,
        le=3600,
        description="Seconds of silence after which a stream of events sends a comment, so that "
        "no proxy takes it for dead.",
    )
    reader_timeout_s: float = Field(
        60,
        gt=0,
        le=86400,
        description="Seconds that a stream waits for a client that does not read; after them it "
        "is broken off and its request cancelled.",
    )
    guide_compile_limit_s: float = Field(
        4,
        gt=0,
        le=60,
        description="Seconds of one core in which a schema, regular expression or grammar must be "
        "compiled; one that takes longer is refused with 400. TensorRT-LLM then compiles it again, "
        "on eight threads, while nobody gets a token; the CPU engine does so beside its steps.",
    )
    triton_native: bool = Field(
        False,
        description="Whether Triton also has `preprocessing`, `postprocessing`, `ensemble` and "
        "`tensorrt_llm_bls`, for clients that speak to Triton itself.",
    )
    triton_http_port: int | None = Field(
        None,
        ge=1,
        le=65535,
        description="Port of Triton's HTTP endpoint on 127.0.0.1. null is a free one at each "
        "start with triton_native, and else keeps the endpoint closed.",
    )
    pass_environment: list[VariableName] = Field(
        [],
        description="Names of further environment variables for Triton and for the steps of a "
        "build. They get what is known to be read by GPUs, MPI, Python and the like, and nothing "
        "that looks like a secret; what is named here passes whatever it holds.",
    )

    @property
    def http_port(self) -> int | None:
        """Triton's HTTP port; 0 for any free one, None to keep the endpoint closed."""
        return 0 if self.triton_native and not self.triton_http_port else self.triton_http_port


class Settings(Strict):
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
    build: Build | None = Field(
        None, description="How to make the engine where no engine_repository is named; see below."
    )
    engine_repository: Repository | None = Field(
        None,
        validate_default=True,
        description="The engine repository, flat or in LMI's layout: `org/name` on Hugging Face, "
        "`s3://bucket/prefix`, a local folder (`/…`, `./…`, `~/…`), or `package://NAME`, the "
        "folder of an installed Python package. Required without `build`.",
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
    trust_remote_code: bool = Field(
        False,
        description="Whether a tokenizer that is a program may run, and a build may load weights "
        "that are pickles (`.bin`) or bring Python code; what is data never needs it.",
    )
    preprocessing_instance_count: int = Field(
        1,
        ge=1,
        le=64,
        description="Processes of Triton's `preprocessing` model; needs `serving.triton_native`, "
        "as the next two.",
    )
    postprocessing_instance_count: int = Field(
        1, ge=1, le=64, description="Processes of Triton's `postprocessing` model."
    )
    bls_instance_count: int = Field(
        1, ge=1, le=64, description="Processes of Triton's `tensorrt_llm_bls` model."
    )
    runtime: RuntimeOptions = Field(
        default_factory=RuntimeOptions,
        description="Parameters of Triton's `tensorrt_llm` model by their config.pbtxt names, and "
        "`max_batch_size` and `instance_count` (copies of a one-GPU engine that share the GPU). "
        "`max_beam_width` is the engine's by default; requests of different widths never run "
        "together, so 1 keeps one with beams from holding up the others. "
        "`guided_decoding_backend: xgrammar` lets answers follow a schema, a regular expression or "
        "a grammar.",
    )
    generation: dict[str, Any] = Field(
        default_factory=dict,
        description="Defaults for request fields, by the names of the predict body.",
    )
    serving: Serving = Field(default_factory=lambda: Serving(), description="Our own limits.")

    @property
    def world_size(self) -> int:
        """Ranks of the engine, one GPU each."""
        return self.tensor_parallelism * self.pipeline_parallelism

    @field_validator("engine_repository")
    @classmethod
    def _there_is_an_engine(cls, name: str | None, info: ValidationInfo) -> str | None:
        if name is None and info.data.get("build", ...) is None:
            raise PydanticCustomError("missing", "Field required")
        return name


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
