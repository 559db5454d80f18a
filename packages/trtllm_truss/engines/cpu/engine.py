"""Models that OpenVINO GenAI runs on the CPU: one GGUF file, or an OpenVINO IR."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import Field

from trtllm_truss.engines.cpu import GUIDE_CHECK, KV_BLOCK_TOKENS
from trtllm_truss.engines.diagnostics import Diagnostic, error, shortlist, warning
from trtllm_truss.engines.engine import FLAT, Engine, ModelConfig, Placement
from trtllm_truss.engines.engine_files import CONFIG_FILE
from trtllm_truss.engines.host import HostInfo
from trtllm_truss.engines.images import BaseImage
from trtllm_truss.engines.scheduling import MAX_UTILIZATION, Scheduling, executor_parameters
from trtllm_truss.errors import ArtifactError, SettingsError
from trtllm_truss.gguf import GGUF_SUFFIX, read_metadata
from trtllm_truss.json_files import INT32_MAX, JsonObject, json_object, read_model
from trtllm_truss.settings.model import Settings
from trtllm_truss.settings.runtime import RuntimeOptions

OPENVINO_MODEL = "openvino_model.xml"
PARAMETERS = frozenset(
    (
        *("max_beam_width", "max_tokens_in_paged_kv_cache", "enable_kv_cache_reuse"),
        *("enable_chunked_context", "batch_scheduler_policy", "cancellation_check_period_ms"),
        *("exclude_input_in_output", "normalize_log_probs"),
    )
)
"""Keys of `runtime` that the CPU engine supports (`trtllm_backends.openvino_genai.engine`)."""

_OPENVINO_PREFIX = "openvino_"
_MAX_BATCH_SIZE = 64
_MAX_TOKENS = 512


class _Config(JsonObject):
    max_position_embeddings: int = Field(ge=2, le=INT32_MAX)


@dataclass(frozen=True, kw_only=True)
class CpuEngine(Engine):
    """A model on the CPU."""

    backend = "openvino_genai"
    title = named = "a CPU engine"
    answering = "the CPU engine"
    refused_fields = frozenset({"bad_words"})
    wanted = f"one {GGUF_SUFFIX} file or {OPENVINO_MODEL} (CPU)"
    suffixes = (GGUF_SUFFIX, OPENVINO_MODEL)
    requirements = ("openvino-genai==2026.4.1.0",)
    wheels = ("nvidia-pytriton",)
    call_share = 1 / 4
    """A step of 64 requests takes 200 ms on two cores; a step of 16 takes 80 ms."""
    counts_guides = True
    rounds_by_rows = True
    guides_set_the_end = True
    scores_beams = False
    huge_pages = True

    @classmethod
    def locate(cls, sizes: Mapping[str, int]) -> Placement | None:
        ggufs = _ggufs(sizes)
        if len(ggufs) > 1:
            raise ArtifactError(
                f"the engine repository holds {len(ggufs)} {GGUF_SUFFIX} files "
                f"({shortlist(ggufs)}); keep only one."
            )
        return FLAT if ggufs or OPENVINO_MODEL in sizes else None

    @classmethod
    def described_by(cls, sizes: Mapping[str, int]) -> tuple[str, ...]:
        return () if _ggufs(sizes) else (CONFIG_FILE,)

    @classmethod
    def describe(cls, sizes: Mapping[str, int], contents: Mapping[str, object]) -> Engine:
        """Describe an OpenVINO IR; a GGUF file contains its own limits (`is_described`)."""
        if _ggufs(sizes):
            return cls._of_context(0)
        if CONFIG_FILE not in contents:
            raise ArtifactError(f"{CONFIG_FILE} is missing; add the one that the build wrote.")
        config = json_object(CONFIG_FILE, contents[CONFIG_FILE])
        return cls._of_context(read_model(_Config, CONFIG_FILE, config).max_position_embeddings)

    @classmethod
    def describe_folder(cls, folder: Path, sizes: Mapping[str, int]) -> Engine:
        ggufs = _ggufs(sizes)
        if not ggufs:
            return super().describe_folder(folder, sizes)
        metadata = read_metadata(folder / ggufs[0])
        context = metadata.get(f"{metadata.get('general.architecture')}.context_length")
        if not isinstance(context, int) or not 2 <= context <= INT32_MAX:
            raise ArtifactError(
                f"{ggufs[0]} has no context length from 2 to {INT32_MAX} in its metadata; "
                "convert it again."
            )
        return cls._of_context(context)

    @classmethod
    def _of_context(cls, tokens: int) -> CpuEngine:
        return cls(
            max_sequence_tokens=tokens,
            max_input_tokens=tokens - 1,
            max_batch_size=_MAX_BATCH_SIZE,
        )

    @property
    def is_described(self) -> bool:
        return self.max_sequence_tokens > 0

    def stated_settings(self) -> Iterator[tuple[str, object, str]]:
        yield (
            "generation.max_tokens",
            _MAX_TOKENS,
            "for requests that set none: a CPU takes minutes to fill a context",
        )

    def needed_files(
        self, sizes: Mapping[str, int], *, with_code: bool, ranks: Collection[int] | None
    ) -> set[str]:
        openvino = (n for n in sizes if "/" not in n and n.startswith(_OPENVINO_PREFIX))
        return set(_ggufs(sizes) or openvino)

    def check(self, settings: Settings, host: HostInfo) -> Iterator[Diagnostic]:
        if settings.node_count > 1:
            yield error(
                "nodes_unsupported",
                f"config.yaml: model_metadata.nodes is {settings.node_count}, but a CPU engine "
                "runs on one host; remove it.",
            )
        yield from self.check_parameters(settings.runtime, host)
        for name in settings.runtime.parameters:
            if name not in PARAMETERS:
                yield warning(
                    "runtime_key_unused",
                    f"config.yaml: model_metadata.runtime.{name} has no effect on a CPU engine; "
                    "remove it, or keep it for GPUs.",
                )
        if host.accelerator is not None:
            yield warning(
                "accelerator_unused",
                f"config.yaml: resources.{host.accelerator_key} is {host.accelerator}, but the "
                "engine runs on the CPU; remove it.",
            )

    def scheduling(self, runtime: RuntimeOptions) -> Scheduling:
        chunked = runtime.enable_chunked_context is not False
        return Scheduling(runtime.batch_scheduler_policy or MAX_UTILIZATION, chunked)

    @property
    def cache_block_tokens(self) -> int:
        return KV_BLOCK_TOKENS

    def overcommits(self, settings: Settings) -> bool:
        """Requests wait for cache space unless configured otherwise."""
        return settings.runtime.batch_scheduler_policy == MAX_UTILIZATION

    @property
    def reports_top_log_probs(self) -> bool:
        return True

    @property
    def reports_prompt_log_probs(self) -> bool:
        return True

    def guided_decoding_backend(self, settings: Settings) -> str:
        return self.backend

    def reads_tokenizer_info(self, settings: Settings) -> bool:
        """The engine and its guide compiler read the tokenizer themselves."""
        return False

    def guide_check(self, tokenizer_info: Path | None) -> Sequence[str]:
        return ["-m", GUIDE_CHECK, str(self.folder.resolve())]

    def model_config(
        self,
        settings: Settings,
        version: str,
        *,
        tokenizer_dir: Path,
        tokenizer_info: Path | None,
        adapters: Mapping[str, Path],
    ) -> ModelConfig:
        runtime = settings.runtime
        scheduling, beams = self.scheduling(runtime), self.beam_limit(settings)
        return ModelConfig(self.folder, executor_parameters(runtime, scheduling, beams, version))

    def base_image(self, given: str | None) -> BaseImage:
        if given is not None:
            raise SettingsError(f"--image is {given!r}, but the engine runs on the CPU; remove it.")
        return BaseImage(None, "Truss's own image: the engine runs on the CPU.", "py312")


KIND = CpuEngine


def _ggufs(sizes: Mapping[str, int]) -> list[str]:
    return sorted(name for name in sizes if "/" not in name and name.endswith(GGUF_SUFFIX))
