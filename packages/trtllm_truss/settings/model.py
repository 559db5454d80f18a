"""Every key of `model_metadata` in config.yaml, with its type, default, range and description.

The platform copies the files of `weights` and `bdn.mounts` into a container before it starts.
Source of their keys and schemes: ``WeightsSource`` and ``BDNVolumeMount`` in
truss/base/truss_config.py, 0.18.35. Truss validates both sections; entries of another shape are
ignored here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, PrivateAttr, StringConstraints, ValidationInfo, field_validator
from pydantic_core import PydanticCustomError

from trtllm_truss.settings.build import Build, Repository
from trtllm_truss.settings.runtime import RuntimeOptions
from trtllm_truss.validation import Strict

_HUB = "hf://"
VOLUME = "bdn:"
MOUNT_ONLY = ("gs://", "azure://", "r2://", "cw://", "https://", VOLUME)
"""Sources that Baseten mounts and this server cannot download."""

_MAIN = "main"
MOUNT_EXAMPLE = "/models/engine"
"""An example path for messages."""


@dataclass(frozen=True, slots=True)
class Mount:
    """One entry of `weights` or `bdn.mounts`.

    Attributes:
        source: its URI, such as ``hf://org/name@<commit>`` or ``bdn:weights/llama:prod``.
        place: folder in the container; for an ``https://`` source it may be a file.
        allowed: patterns of the files to include, as in a Unix shell; none means all.
        ignored: patterns of files to exclude.
    """

    source: str
    place: Path
    allowed: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()

    def delivers(self, path: str) -> bool:
        """Return True if the patterns include a file, given by its path below the source."""
        wanted = not self.allowed or any(fnmatchcase(path, each) for each in self.allowed)
        return wanted and not any(fnmatchcase(path, each) for each in self.ignored)

    @property
    def repository(self) -> str:
        """The source in the form of `engine_repository`."""
        return self.source.removeprefix(_HUB).partition("@")[0] if self._is_hub else self.source

    @property
    def revision(self) -> str | None:
        """The revision of a source on Hugging Face; None means the main branch."""
        return self.source.removeprefix(_HUB).partition("@")[2] or None if self._is_hub else None

    def has_revision(self, revision: str | None) -> bool:
        """Compare with a revision from the settings, where None accepts any."""
        return not self._is_hub or revision in (None, self.revision or _MAIN)

    def folder_of(self, repository: str) -> Path | None:
        """Return the local folder of a repository: the mount or a folder below it.

        None if not mounted.
        """
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


ToolParser = Literal[
    "hermes",
    "qwen3_coder",
    "glm45",
    "kimi_k2",
    "kimi_k3",
    "deepseek_v3",
    "deepseek_v31",
    "deepseek_v32",
    "minimax_m2",
    "minimax_m3",
    "mistral",
    "mistral_args",
    "harmony",
    "llama3_json",
    "pythonic",
    "gemma4",
    "nemotron",
    "granite",
    "phi4_mini",
    "command_r7b",
    "lfm2",
    "olmo3",
    "apertus",
    "apriel",
    "hunyuan",
    "inkling",
    "telechat4",
    "json",
]
ReasoningParser = Literal[
    "qwen3",
    "deepseek_r1",
    "granite",
    "mistral",
    "seed_oss",
    "reasoning_tags",
    "hunyuan",
    "minimax_m3",
    "gemma4",
    "command_r7b",
    "apertus",
    "apriel",
    "kimi_k3",
    "inkling",
    "harmony",
]
AdapterName = Annotated[str, StringConstraints(min_length=1, max_length=200)]
VariableName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]


class Serving(Strict):
    """Limits of the server that do not concern the engine."""

    start_timeout_s: float = Field(
        1500,
        gt=0,
        le=86400,
        description="Seconds from starting Triton until the engine must be ready; checkpoints "
        "get one more per 200 MB of weights. Baseten gives a replica 30 minutes in total.",
    )
    hang_timeout_s: float = Field(
        120,
        ge=1,
        le=86400,
        description="Seconds with requests in flight but no token, or with every request failing "
        "because the engine is unavailable; after that the engine counts as hung: its "
        "requests fail and it is restarted.",
    )
    restart_limit: int = Field(
        5,
        ge=0,
        le=100,
        description="Maximum restarts of an engine that died or hung, without a completed "
        "request in between; then the process exits with an error, so that the platform "
        "replaces it.",
    )
    restart_backoff_s: float = Field(
        1.0,
        ge=0,
        le=600,
        description="Seconds before the second restart in a row; the delay doubles for each "
        "further one. The first is immediate.",
    )
    keep_kernels: bool = Field(
        True,
        description="Keep the files that TensorRT-LLM tunes and compiles while loading a "
        "checkpoint on the platform's volume (`/cache/model` on Baseten), for later starts "
        "and other replicas.",
    )
    drain_timeout_s: float = Field(
        30,
        ge=0,
        le=3600,
        description="Seconds for running requests to finish after SIGTERM, with `serve`. In a "
        "container, Truss's server allows an hour, and the platform's grace period applies.",
    )
    drain_notice_s: float = Field(
        0,
        ge=0,
        le=3600,
        description="Seconds after SIGTERM in which our own server still accepts requests while "
        "its health checks fail, so that routers remove it first; then drain_timeout_s "
        "begins.",
    )
    max_body_bytes: int = Field(
        8 << 20,
        ge=1 << 10,
        le=1 << 30,
        description="Maximum size of a request body in bytes; larger ones are refused with 413.",
    )
    max_bodies_bytes: int = Field(
        512 << 20,
        validate_default=True,
        ge=1 << 10,
        le=1 << 40,
        description="Maximum size of the bodies of all requests in flight in bytes, at least "
        "max_body_bytes; above it, the largest unfinished one is refused with 503.",
    )
    body_timeout_s: float = Field(
        30,
        gt=0,
        le=3600,
        description="Seconds that a body may pause, and within which it must arrive, plus one "
        "per 32 KiB. Slower ones are refused with 408.",
    )
    control_tokens_in_messages: bool = Field(
        False,
        description="Interpret special tokens written out in `messages`, such as `</s>`; by "
        "default they are plain text, so that users cannot forge another's turn.",
    )
    tool_parser: Literal["auto", "none"] | ToolParser = Field(
        "auto",
        description="Format of the model's tool calls. `auto` derives it from the chat template, "
        "or uses `hermes` for a template without tools; `none` leaves calls in the text.",
    )
    reasoning_parser: Literal["auto", "none"] | ReasoningParser = Field(
        "auto",
        description="Format of the model's reasoning, which is returned as `reasoning_content`. "
        "`auto` derives it from the chat template; `none` leaves it in the text.",
    )
    reasoning_limit_tokens: int | None = Field(
        None,
        ge=1,
        description="Maximum tokens of a chat's reasoning; at the limit the reasoning is closed, "
        "so that the content follows. By default only `max_tokens` limits both.",
    )
    queue_limit: int = Field(
        2048,
        ge=0,
        le=100_000,
        description="Maximum number of requests waiting for the engine; further ones are refused "
        "with 429.",
    )
    queue_timeout_s: float = Field(
        10,
        gt=0,
        le=3600,
        description="Seconds that a request may wait for the engine; if the estimated wait is "
        "longer, it is refused with 429 immediately. Only one choice of a call waits at a "
        "time; the wait of the next one starts when that is admitted.",
    )
    first_token_timeout_s: float = Field(
        300,
        gt=0,
        le=86400,
        description="Seconds from the end of the wait to a request's first token; after that it "
        "fails with 504.",
    )
    idle_timeout_s: float = Field(
        60,
        gt=0,
        le=86400,
        description="Seconds between two tokens of a request; after that it fails with 504.",
    )
    request_timeout_s: float = Field(
        3600,
        gt=0,
        le=86400,
        description="Seconds for a whole request; after that it fails with 504.",
    )
    chunk_interval_ms: float = Field(
        20,
        ge=0,
        le=1000,
        description="Minimum interval between the chunks of a stream after the first, which is "
        "sent immediately.",
    )
    keep_alive_s: float = Field(
        15,
        gt=0,
        le=3600,
        description="Seconds of silence after which an event stream sends a comment, so that "
        "proxies keep the connection open.",
    )
    reader_timeout_s: float = Field(
        60,
        gt=0,
        le=86400,
        description="Seconds that a stream waits for a client that does not read; then it is "
        "aborted and its request cancelled. Our own server applies it to every response.",
    )
    metrics_need_key: bool = Field(
        False,
        description="Require the secret `server_api_key` for `/metrics` too, which is open to "
        "scrapers by default.",
    )
    core_dumps: bool = Field(
        False,
        description="Let the kernel write core dumps of the server, its commands and Triton for "
        "debugging, if the hard limit allows it (`ulimit -Hc`). They contain secrets and "
        "prompts.",
    )
    guide_compile_limit_s: float = Field(
        4,
        gt=0,
        le=60,
        description="CPU seconds for compiling a schema, regular expression or grammar; slower "
        "ones are refused with 400. TensorRT-LLM then compiles it again on eight threads, "
        "while all requests pause; the CPU engine compiles in the background.",
    )
    guide_memory_bytes: int = Field(
        1 << 29,
        ge=1 << 25,
        le=1 << 40,
        description="Memory for compiled guides in TensorRT-LLM before 1.1, which keeps every "
        "guide until it restarts. Above it, new guides are refused with 429; earlier ones "
        "still work.",
    )
    triton_native: bool = Field(
        False,
        description="Add the models `preprocessing`, `postprocessing`, `ensemble` and "
        "`tensorrt_llm_bls`, for clients that connect to Triton directly.",
    )
    triton_decoupled_mode: bool = Field(
        True,
        description="If true, `ensemble` and `tensorrt_llm_bls` stream, and Triton refuses "
        "`infer` requests to them; if false, they send one response, so that `infer` "
        "works. This is NVIDIA's `decoupled_mode`; it requires triton_native.",
    )
    triton_http_port: int | None = Field(
        None,
        ge=1,
        le=65535,
        description="Port of Triton's HTTP endpoint on 127.0.0.1. With triton_native, null is a "
        "free port at each start; otherwise null keeps the endpoint closed.",
    )
    triton_grpc_port: int | None = Field(
        None,
        ge=1,
        le=65535,
        description="Port of Triton's gRPC endpoint on 127.0.0.1; null is a free port at each "
        "start.",
    )
    pass_environment: list[VariableName] = Field(
        [],
        description="Names of additional environment variables for Triton and for the steps of a "
        "build. Both receive the known variables of GPUs, MPI, Python and the like, except "
        "those that look like secrets; variables listed here are always passed.",
    )

    @property
    def http_port(self) -> int | None:
        """Triton's HTTP port; 0 for any free port, None for a closed endpoint."""
        return 0 if self.triton_native and not self.triton_http_port else self.triton_http_port

    @field_validator("max_bodies_bytes")
    @classmethod
    def _allow_one_body(cls, size_bytes: int, info: ValidationInfo) -> int:
        if size_bytes < info.data.get("max_body_bytes", 0):
            message = "it is less than max_body_bytes; raise it, or lower max_body_bytes"
            raise PydanticCustomError("conflict", "{message}", {"message": message})
        return size_bytes

    @field_validator("triton_grpc_port")
    @classmethod
    def _differ_from_the_http_port(cls, port: int | None, info: ValidationInfo) -> int | None:
        if port is not None and port == info.data.get("triton_http_port"):
            message = "triton_http_port has the same value; choose another port for one of them"
            raise PydanticCustomError("conflict", "{message}", {"message": message})
        return port


class Settings(Strict):
    """`model_metadata`, validated."""

    tensor_parallelism: int = Field(
        1,
        ge=1,
        le=64,
        description="GPUs that each layer is split over; must equal that of a prebuilt engine.",
    )
    pipeline_parallelism: int = Field(
        1,
        ge=1,
        le=64,
        description="Groups of layers on different GPUs; must equal that of a prebuilt engine. "
        "GPUs = tensor_parallelism × pipeline_parallelism.",
    )
    nodes: int | None = Field(
        None,
        ge=1,
        le=64,
        description="Hosts that share the engine's ranks evenly, with one process per GPU "
        "started by Slurm or `mpirun`; null uses the launcher's number, or 1 without a "
        "launcher ([several-hosts.md](several-hosts.md)).",
    )
    build: Build | None = Field(
        None,
        description="Builds the engine instead of fetching it from engine_repository; see below.",
    )
    engine_repository: Repository | None = Field(
        None,
        validate_default=True,
        description="Repository of an engine, flat or in LMI's layout, or of a checkpoint: "
        "`org/name` on Hugging Face, `s3://bucket/prefix`, a local folder (`/…`, `./…`, "
        "`~/…`), `package://NAME` (the folder of an installed Python package), or a source "
        "mounted by `weights` or `bdn.mounts`. Required without `build`.",
    )
    engine_revision: Repository | None = Field(
        None, description="Branch, tag or commit of engine_repository; null means the main branch."
    )
    tokenizer_repository: Repository | None = Field(
        None,
        description="Repository of the tokenizer, in the same forms; null uses the engine's.",
    )
    tokenizer_revision: Repository | None = Field(
        None, description="Branch, tag or commit of tokenizer_repository."
    )
    lora_adapters: dict[AdapterName, Repository] = Field(
        default_factory=dict,
        description="LoRA adapters of a checkpoint by name: their repositories, in the same "
        "forms (on Hugging Face optionally with `@` and a revision). A request selects one "
        "by its name as `model`, or by its number in this order, from 1, as `lora_task_id`.",
    )
    trust_remote_code: bool = Field(
        False,
        description="Allow a tokenizer or checkpoint to run Python code, and a build to load "
        "pickled weights (`.bin`) or Python code; plain data never needs it.",
    )
    preprocessing_instance_count: int = Field(
        1,
        ge=1,
        le=64,
        description="Processes of Triton's `preprocessing` model; like the next two, requires "
        "`serving.triton_native`.",
    )
    postprocessing_instance_count: int = Field(
        1, ge=1, le=64, description="Processes of Triton's `postprocessing` model."
    )
    bls_instance_count: int = Field(
        1, ge=1, le=64, description="Processes of Triton's `tensorrt_llm_bls` model."
    )
    runtime: RuntimeOptions = Field(
        default_factory=RuntimeOptions,
        description="Parameters of Triton's `tensorrt_llm` model by their config.pbtxt names, "
        "`max_batch_size` and `instance_count`; for a checkpoint, `llm_args` with the "
        "arguments of `tensorrt_llm.LLM` ([llm-api.md](llm-api.md)). See [the notes on "
        "runtime](#notes-on-runtime).",
    )
    generation: dict[str, Any] = Field(
        default_factory=dict,
        description="Defaults for request fields, by the predict body's field names.",
    )
    serving: Serving = Field(default_factory=lambda: Serving(), description="Limits of the server.")
    _mounts: tuple[Mount, ...] = PrivateAttr(())

    def model_post_init(self, context: Any) -> None:
        """Keep the mounts that `parse_settings` read next to `model_metadata` in config.yaml."""
        self._mounts = (context or {}).get("mounts", ())

    @property
    def mounts(self) -> tuple[Mount, ...]:
        """`weights` and `bdn.mounts` of config.yaml; they may be absent on this machine."""
        return self._mounts

    @property
    def world_size(self) -> int:
        """Ranks of the engine, one GPU each."""
        return self.tensor_parallelism * self.pipeline_parallelism

    @property
    def node_count(self) -> int:
        """Number of hosts that share the ranks."""
        return self.nodes or 1

    @field_validator("engine_repository")
    @classmethod
    def _require_an_engine(cls, name: str | None, info: ValidationInfo) -> str | None:
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
"""Keys of `model_metadata` that Baseten reads; ignored here."""
