"""The interface of an engine to the rest of the project, for all kinds.

A kind is a folder beside this module with a subclass of `Engine`, registered in `kinds`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from trtllm_truss.engines.adapters import Adapter, AdapterRepository
from trtllm_truss.engines.capacity import CacheSettings, CacheShape, Capacity
from trtllm_truss.engines.diagnostics import Diagnostic, error, warning
from trtllm_truss.engines.engine_files import CONFIG_FILE, WEIGHTS_SUFFIX, refuse_lfs_pointers
from trtllm_truss.engines.gpus import ComputeCapability
from trtllm_truss.engines.host import HostInfo
from trtllm_truss.engines.images import BaseImage
from trtllm_truss.engines.manifest import Manifest, TargetGpu
from trtllm_truss.errors import SettingsError
from trtllm_truss.json_files import parse_json
from trtllm_truss.releases import CACHED_TOKENS, OWN_INPUTS, OWN_OUTPUTS, CacheReport, Tensor
from trtllm_truss.settings.loading import Environment
from trtllm_truss.settings.model import Settings
from trtllm_truss.settings.runtime import ParameterValue, RuntimeOptions

_GUIDE_CHECK = "trtllm_truss.guides.compiler_worker"

SLOW_BYTES_PER_S = 2e8
"""Throughput of a slow network disk; an engine's files usually load several times faster."""


@dataclass(frozen=True, slots=True)
class Placement:
    """Location of an engine in a repository.

    Attributes:
        folder: path of its folder, ``/`` between folders; empty for the top.
        tokenizer_folder: the same for the tokenizer, if it has one.
        marks: paths of further files that identify the engine.
    """

    folder: str = ""
    tokenizer_folder: str = ""
    marks: tuple[str, ...] = ()

    def sizes(self, sizes: Mapping[str, int]) -> dict[str, int]:
        return below(self.folder, sizes)

    def tokenizer_sizes(self, sizes: Mapping[str, int]) -> dict[str, int]:
        return below(self.tokenizer_folder, sizes)

    def paths(self, names: Iterable[str]) -> list[str]:
        return [joined(self.folder, name) for name in names]

    def tokenizer_paths(self, names: Iterable[str]) -> list[str]:
        return [joined(self.tokenizer_folder, name) for name in names]


FLAT = Placement()
"""The top folder of the repository."""


def joined(folder: str, name: str) -> str:
    return f"{folder}/{name}" if folder else name


def below(folder: str, sizes: Mapping[str, int]) -> dict[str, int]:
    prefix = f"{folder}/" if folder else ""
    return {
        name.removeprefix(prefix): size for name, size in sizes.items() if name.startswith(prefix)
    }


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """The parts of the model's ``config.pbtxt`` that depend on the kind of engine.

    Attributes:
        engine_dir: the value of `gpt_model_path`.
        parameters: by name, without `gpt_model_path`.
        of_executor: the parameters of NVIDIA's backend apply, as in the template.
        inputs: tensors besides those of every engine; by default those of this project's backends.
        outputs: likewise.
    """

    engine_dir: Path
    parameters: Mapping[str, ParameterValue]
    of_executor: bool = True
    inputs: tuple[Tensor, ...] = OWN_INPUTS
    outputs: tuple[Tensor, ...] = OWN_OUTPUTS


class RankLauncher(ABC):
    """A program that runs the ranks of a job started by a launcher."""

    @abstractmethod
    def rank(self, segment: Sequence[str], rank: int, folder: Path) -> list[str]:
        """Return the command of one rank.

        Args:
            segment: the server's command line.

        Raises:
            TritonError: the program cannot handle the folder's path.
        """

    @abstractmethod
    def job(self, command: Sequence[str]) -> list[str]:
        """Return the command of the job whose ranks it runs."""


NO_EVENTS = "Leave out --kv-events, and set --no-router-kv-events of Dynamo's frontend."


@dataclass(frozen=True, kw_only=True)
class Engine(ABC):
    """An engine, described without its weights. The base class implements the defaults.

    Attributes:
        max_sequence_tokens: limit of prompt and generated tokens together.
        max_input_tokens: limit of prompt tokens; the settings may raise it (`with_settings`).
        max_batch_size: sequences that run at once.
        max_beam_width: maximum beams per request.
        tensor_parallelism: GPUs that one layer is split over.
        pipeline_parallelism: groups of layers on different GPUs.
        manifest: the record of its build, if any.
        placement: its location in the repository.
        folder: its files, once downloaded.
        tokenizer_folder: its tokenizer's files, if the repository has any.
    """

    backend: ClassVar[str]
    """The Triton backend that serves it, also its name in reports."""
    title: ClassVar[str]
    """The heading of a Truss for it: a noun with its article."""
    named: ClassVar[str]
    """As above, for errors about unsupported settings."""
    answering: ClassVar[str]
    """As above, for errors about request fields."""
    refused_fields: ClassVar[frozenset[str]] = frozenset()
    """Request fields that this kind does not support."""
    wanted: ClassVar[str]
    """A description of the files in its repository's top folder, for messages."""
    wanted_deep: ClassVar[str] = ""
    """A description of its other layout, if any."""
    suffixes: ClassVar[tuple[str, ...]] = ()
    """Suffixes of files found only in folders of this kind; each is present at least once."""
    own_settings: ClassVar[tuple[str, ...]] = ()
    """Keys of `model_metadata` for this kind of engine only, with dots between sections."""
    own_repository: ClassVar[str] = ""
    """A description of the `engine_repository` that `own_settings` require, for errors."""
    uses_gpus: ClassVar[bool] = False
    fixed_split: ClassVar[bool] = False
    """True if the engine fixes its parallelism, not the settings."""
    requirements: ClassVar[tuple[str, ...]] = ()
    """Python packages that Truss's process needs to serve it."""
    wheels: ClassVar[tuple[str, ...]] = ()
    """Packages that its image unpacks without their dependencies."""
    in_python_of_runtime: ClassVar[bool] = False
    """True if its backend imports `tensorrt_llm`."""
    call_share: ClassVar[float] = 7 / 8
    """Share of the batch available to calls with several choices while other calls run."""
    counts_guides: ClassVar[bool] = False
    """True if guided requests must include the size of the compiled guide."""
    rounds_by_rows: ClassVar[bool] = False
    """True if the number of rows in a step changes rounding, and keeping it constant costs time."""
    guides_set_the_end: ClassVar[bool] = False
    """True if it refuses `min_tokens` with a guide."""
    huge_pages: ClassVar[bool] = False
    """True if huge pages speed it up: a CPU reads all weights for each token."""
    scores_beams: ClassVar[bool] = True
    """True if alternatives of a token, if returned at all, are returned in beam search too."""
    spawns_ranks: ClassVar[bool] = False
    """True if its backend starts the ranks itself, with MPI."""

    max_sequence_tokens: int
    max_input_tokens: int
    max_batch_size: int
    max_beam_width: int = 1
    tensor_parallelism: int = 1
    pipeline_parallelism: int = 1
    manifest: Manifest | None = None
    placement: Placement = FLAT
    folder: Path = Path()
    tokenizer_folder: Path = Path()

    # Recognition and description

    @classmethod
    @abstractmethod
    def locate(cls, sizes: Mapping[str, int]) -> Placement | None:
        """Find an engine of this kind in a repository; return None if there is none.

        Args:
            sizes: size in bytes of every file, by path below the repository, ``/`` between folders.

        Raises:
            ArtifactError: there are several engines, or an incomplete one.
        """

    @classmethod
    def described_by(cls, sizes: Mapping[str, int]) -> tuple[str, ...]:
        """Return the JSON files in a folder that describe its engine, whether present or not."""
        return (CONFIG_FILE,)

    @classmethod
    @abstractmethod
    def describe(cls, sizes: Mapping[str, int], contents: Mapping[str, object]) -> Engine:
        """Describe the engine of a folder.

        Args:
            sizes: size in bytes of every file, by path below the folder.
            contents: the parsed files of `described_by` that exist, by name.

        Raises:
            ArtifactError: the files do not describe an engine.
        """

    @classmethod
    def describe_folder(cls, folder: Path, sizes: Mapping[str, int]) -> Engine:
        """Describe the engine in a local folder, with all its files.

        Raises:
            ArtifactError: as in `describe`.
        """
        refuse_lfs_pointers(folder, sizes, (*cls.suffixes, WEIGHTS_SUFFIX))
        names = [name for name in cls.described_by(sizes) if name in sizes]
        return cls.describe(
            sizes, {name: parse_json(name, (folder / name).read_bytes()) for name in names}
        )

    @property
    def is_described(self) -> bool:
        """False if its limits are unknown until its weights are downloaded."""
        return True

    @classmethod
    def check_settings(cls, settings: Settings, version: str | None) -> None:
        """Check the values of `own_settings`; called if at least one is set.

        Args:
            version: version of TensorRT-LLM; None if unknown.

        Raises:
            SettingsError: a value is wrong, or not available in the version; its ``param`` names
                it.
        """
        return

    def stated_settings(self) -> Iterator[tuple[str, object, str]]:
        """Yield settings that a new config.yaml should contain, after `with_settings` was applied.

        Yields:
            Each item is a key below `model_metadata`, with dots between sections, its value and a
                remark.
        """
        yield from ()

    @classmethod
    def settings_schema(cls) -> Mapping[str, Any]:
        """Return the JSON schemas of the `own_settings` that `Settings` leaves open."""
        return {}

    def with_settings(
        self,
        settings: Settings,
        version: str | None = None,
        adapters: Sequence[Adapter] = (),
        gpu: ComputeCapability | None = None,
    ) -> Engine:
        """Apply the settings to the limits.

        Args:
            version: version of TensorRT-LLM; None if unknown.
            adapters: adapters of `lora_adapters`.

        Raises:
            SettingsError: a setting contradicts another.
        """
        return self

    # Files

    @classmethod
    def open_adapters(
        cls, settings: Settings, environment: Environment
    ) -> tuple[AdapterRepository, ...]:
        """Open the repositories of `lora_adapters` and check each adapter and the disk.

        Raises:
            ArtifactError: a repository is unreadable or has no adapter that can be applied.
        """
        return ()

    @abstractmethod
    def needed_files(
        self, sizes: Mapping[str, int], *, with_code: bool, ranks: Collection[int] | None
    ) -> set[str]:
        """Return the files needed for serving besides `config.json`, whether present or not.

        Args:
            sizes: size in bytes of every file, by path below the engine's folder.
            with_code: include Python files (`trust_remote_code`).
            ranks: ranks on this host; None for all.
        """

    def check_manifest(self, manifest: Manifest) -> None:
        """Compare the manifest with the description.

        Raises:
            ArtifactError: they are from different builds.
        """
        return

    # Compatibility with the settings and the host

    @abstractmethod
    def check(self, settings: Settings, host: HostInfo) -> Iterator[Diagnostic]:
        """Yield mismatches, the most basic first."""

    def check_parameters(self, runtime: RuntimeOptions, host: HostInfo) -> Iterator[Diagnostic]:
        """Yield errors for `runtime` keys of other versions, and warnings for keys without effect.

        If the installed version is known, this was checked when config.yaml was read.
        """
        version = host.version_for(self.built_version)
        if host.known_version is None:
            try:
                runtime.check_version(version)
            except SettingsError as problem:
                yield error("runtime_key_of_another_version", problem.message)
        for name, reason in runtime.ignored_by(version):
            yield warning(
                "runtime_key_without_effect",
                f"config.yaml: model_metadata.runtime.{name} has no effect on TensorRT-LLM "
                f"{version}: {reason}; remove it.",
            )

    @property
    def facts(self) -> Sequence[str]:
        """Further properties for `check`, one sentence each."""
        return ()

    @property
    def target_gpu(self) -> TargetGpu | None:
        return None if self.manifest is None else self.manifest.gpu

    @property
    def built_version(self) -> str | None:
        """The TensorRT-LLM version that built it, the only one it runs on; None if not built."""
        return None

    # Ranks and hosts

    @property
    def world_size(self) -> int:
        """Number of ranks, one GPU each; 1 for a CPU engine."""
        return self.tensor_parallelism * self.pipeline_parallelism

    @property
    def gpu_count(self) -> int:
        return self.world_size if self.uses_gpus else 0

    @property
    def server_ranks(self) -> int:
        """Number of Triton processes on one host."""
        return 1 if self.spawns_ranks else self.world_size

    def ranks_opened_by(self, index: int) -> tuple[int, ...] | None:
        """Return the ranks whose files one process of a launcher's job opens; None for all."""
        return None

    def rank_launcher(self, environ: Mapping[str, str]) -> RankLauncher | None:
        """Return the program that runs each rank of a launcher's job; None if Triton is the rank.

        Raises:
            TritonError: the program is not installed.
        """
        return None

    def held_for(self, ranks: Collection[int]) -> Engine:
        """Return the description for a process that has the files of some ranks only."""
        return self

    def ranks_need_tokenizer(self, settings: Settings) -> bool:
        """Return True if every rank reads the tokenizer, not only the serving one."""
        return True

    # Capacity and admission

    @property
    def largest_rank_bytes(self) -> int | None:
        """Weight bytes of the rank with the most; None if they use no GPU."""
        return None

    @property
    def reserved_bytes(self) -> int:
        """Known GPU memory in bytes that neither weights nor the KV cache use."""
        return 0

    @property
    def late_bytes(self) -> int:
        """GPU memory in bytes that is allocated only after the KV cache: copies of adapters."""
        return 0

    @property
    def cache_shape(self) -> CacheShape | None:
        """The shape of the KV cache; None if it is not on a GPU."""
        return None

    @property
    def cache_block_tokens(self) -> int:
        """Return the number of tokens in one block of the KV cache."""
        shape = self.cache_shape
        assert shape is not None, "kinds without a GPU override this"
        return shape.block_tokens

    def reporting_kv_events(self, address: Path) -> Engine:
        """Return the engine with KV cache events sent to a Unix socket.

        Raises:
            SettingsError: it cannot report events.
        """
        raise SettingsError(f"{self.named} reports no KV events. {NO_EVENTS}")

    def cache_knobs(self, runtime: RuntimeOptions) -> CacheSettings:
        return CacheSettings.from_runtime(runtime)

    def kv_cache_tokens(self, settings: Settings, capacity: Capacity | None) -> int | None:
        """Return how many tokens the KV cache of one scheduler holds; None if unknown.

        Args:
            settings: `runtime` may limit them.
            capacity: the engine's capacity on these GPUs; None if unknown.
        """
        if capacity is not None:
            return capacity.tokens
        return self.cache_knobs(settings.runtime).max_tokens

    @abstractmethod
    def overcommits(self, settings: Settings) -> bool:
        """Return True if it admits more requests than fit into its KV cache, and pauses some."""

    def instance_count(self, settings: Settings) -> int:
        """Return the number of copies in one server; they share its GPU.

        Raises:
            SettingsError: several copies of a multi-rank engine, or `gpu_device_ids` without one
                GPU per rank.
        """
        wanted = settings.runtime.instance_count or 1
        if wanted > 1 and self.world_size > 1:
            raise SettingsError(
                f"config.yaml: model_metadata.runtime.instance_count is {wanted}, but an engine of "
                f"{self.world_size} ranks can have one instance only; remove it."
            )
        devices = settings.runtime.gpu_device_ids
        ranks = self.world_size // settings.node_count
        if devices and len(devices) != ranks:
            on_each = " on each host" if settings.node_count > 1 else ""
            raise SettingsError(
                f"config.yaml: model_metadata.runtime.gpu_device_ids names {len(devices)} GPUs, "
                f"but the engine has {ranks} ranks{on_each}; name one GPU for each."
            )
        return wanted

    def scheduler_count(self, settings: Settings) -> int:
        """Return the number of batches that run side by side, each with its own KV cache."""
        return self.instance_count(settings)

    # Limits of requests

    def batch_size(self, settings: Settings) -> int:
        """Return the number of requests that one scheduler runs concurrently."""
        return settings.runtime.max_batch_size or self.max_batch_size

    def beam_limit(self, settings: Settings) -> int:
        """Return the maximum beams per request: the engine's unless `runtime` lowers it.

        Defaults to 1 if all requests must have the same number.
        """
        default = 1 if self.one_beam_width else self.max_beam_width
        return settings.runtime.max_beam_width or default

    @property
    def one_beam_width(self) -> bool:
        """True if every request must have `beam_limit` beams."""
        return False

    def first_beam_width(self, settings: Settings) -> int:
        """Return the beams of the first request."""
        return self.beam_limit(settings) if self.one_beam_width else 1

    def max_stream_tokens(self, runtime: RuntimeOptions) -> int | None:
        """Return the limit of prompt and output of a stream, if its scheduler sets one."""
        return None

    @property
    def takes_adapters(self) -> bool:
        return False

    @property
    def biased_tokens(self) -> int:
        """Vocabulary size whose logits can be biased; 0 if none can."""
        return 0

    @property
    def reports_top_log_probs(self) -> bool:
        """True if it returns a token's alternatives."""
        return False

    @property
    def reports_prompt_log_probs(self) -> bool:
        """True if it returns log probabilities of prompt tokens."""
        return False

    @property
    def logits_vocabulary(self) -> int:
        """Vocabulary size if it returns both as logits; 0 if as log probabilities."""
        return 0

    @property
    def takes_trace_headers(self) -> bool:
        """True if it exports its own spans below the caller's `traceparent`."""
        return False

    def refuses(self, version: str | None) -> frozenset[str]:
        """Return the names of request fields that it refuses in a TensorRT-LLM release."""
        return self.refused_fields

    def why_refused(self, field: str) -> str | None:
        """Return the error about a request field, without the field's name.

        None if the field is sent.

        The engine may still refuse a field that is sent.
        """
        if field in self.refused_fields:
            return f"is not supported by {self.answering}; leave it out."
        return None

    def cache_report(self, runtime: RuntimeOptions, version: str | None) -> CacheReport | None:
        """Return how it reports cached prompt tokens; None if it does not."""
        return CacheReport(CACHED_TOKENS.name, 1)

    # Guided decoding

    def guided_decoding_backend(self, settings: Settings) -> str | None:
        """Return the name of its grammar library; None without guided decoding."""
        return settings.runtime.guided_decoding_backend

    def lacks_guides(self, version: str | None) -> str:
        """Return why guided decoding cannot be enabled; empty if it can, or needs no setting.

        Args:
            version: version of TensorRT-LLM; None if unknown.

        Returns:
            The end of a sentence about guided decoding.
        """
        return ""

    def reads_tokenizer_info(self, settings: Settings) -> bool:
        """Return True if guides need the file of `xgrammar_tokenizer_info_path`."""
        return self.guided_decoding_backend(settings) is not None

    def guide_check(self, tokenizer_info: Path | None) -> Sequence[str] | None:
        """Return the Python arguments of the program that checks guides; None without guides.

        Args:
            tokenizer_info: the file of `xgrammar_tokenizer_info_path`; None if it is not read.
        """
        return None if tokenizer_info is None else ["-m", _GUIDE_CHECK, str(tokenizer_info)]

    # The server

    @abstractmethod
    def model_config(
        self,
        settings: Settings,
        version: str,
        *,
        tokenizer_dir: Path,
        tokenizer_info: Path | None,
        adapters: Mapping[str, Path],
    ) -> ModelConfig:
        """Return the engine's part of the model's ``config.pbtxt``.

        Args:
            version: version of TensorRT-LLM, which determines the names of parameters.
            tokenizer_info: the vocabulary for guides; None without guides.
            adapters: folders of LoRA adapters by name, numbered from 1.
        """

    @property
    def extra_start_s(self) -> float:
        """Seconds that its start may take in addition to `serving.start_timeout_s`."""
        return 0.0

    # The image

    @abstractmethod
    def base_image(self, given: str | None) -> BaseImage:
        """Choose the newest image that serves the engine.

        Args:
            given: an image's name, used as it is.

        Raises:
            SettingsError: no image matches, or `given` is not an image's name.
        """

    @property
    def built_for(self) -> ComputeCapability | None:
        """Compute capability of the GPUs it runs on; None for any."""
        return None if self.target_gpu is None else self.target_gpu.compute_capability

    def notes_about_gpu(self, accelerator: str) -> list[str]:
        """Return sentences about the accelerator that `init` chose."""
        return []
