"""`check`: verify everything that can be verified without a start."""

from __future__ import annotations

import argparse
import json
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from trtllm_builder.jobs import prepare_build
from trtllm_truss.artifacts import open_repository
from trtllm_truss.artifacts.open_repository import is_remote
from trtllm_truss.cli.baseten import (
    ConcurrencyTarget,
    Need,
    check_keys,
    check_revisions,
    needs_of,
    needs_of_build,
)
from trtllm_truss.cli.common import add_truss_options, report, write
from trtllm_truss.cli.deployment import check_deployment
from trtllm_truss.cli.truss_verdict import TrussVerdict
from trtllm_truss.configuration import load_configuration, read_config
from trtllm_truss.conversation.probing import Answer
from trtllm_truss.engines.diagnostics import Diagnostic, Severity, error, warning
from trtllm_truss.engines.engine import Engine
from trtllm_truss.engines.host import HostInfo
from trtllm_truss.engines.kinds import (
    check_compatibility,
    inspect_engine,
    open_adapters,
    with_settings,
)
from trtllm_truss.errors import ArtifactError, SettingsError, TrussError
from trtllm_truss.gguf import GGUF_SUFFIX
from trtllm_truss.machine.describe import (
    Machine,
    check_jinja,
    check_machine,
    container_sentences,
    inspect_machine,
)
from trtllm_truss.serving.preparation import (
    cache_capacity,
    host_info,
    open_engine,
    open_tokenizer,
    own_tokenizer_paths,
    server_problem,
)
from trtllm_truss.settings.loading import Environment, read_environment, require_one_builder
from trtllm_truss.settings.model import Settings
from trtllm_truss.text.tokenizer import TextTokenizer, load_tokenizer
from trtllm_truss.tool_calls.detection import UNKNOWN_CALLS, describe_formats
from trtllm_truss.tool_calls.parser import choose_formats

WRONG_SETTINGS_STATUS = 2
WOULD_NOT_START_STATUS = 3

_NO_GPU = warning("no_gpu", "no GPU is visible; the engine was not compared with one.")


@dataclass(frozen=True, slots=True)
class CheckReport:
    """The result of `check`.

    Attributes:
        facts: properties of the engine, one sentence each.
        machine: likewise for this machine, which may not be the serving one.
        settings_wrong: the settings are the problem.
        chat_template: findings about the chat template; empty if it could not be loaded.
    """

    facts: list[str]
    findings: list[Diagnostic]
    settings_wrong: bool = False
    machine: Sequence[str] = ()
    chat_template: Sequence[Answer] = ()

    @property
    def status(self) -> int:
        """The exit status: 0, 2 (settings wrong) or 3 (would not start)."""
        if self.settings_wrong:
            return WRONG_SETTINGS_STATUS
        errors = any(finding.severity is Severity.ERROR for finding in self.findings)
        return WOULD_NOT_START_STATUS if errors else 0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_truss_options(parser)
    parser.add_argument("--json", action="store_true", help="print the findings as JSON")


def run(options: argparse.Namespace) -> int:
    """Print facts and findings; return the exit status of the report."""
    file = options.config or options.truss / "config.yaml"
    verdict = TrussVerdict(file) if file.is_file() else None
    with _warnings_as_findings():
        found = examine(options.truss, options.config)
    if verdict is not None:
        found = _with_verdict(found, verdict)
    if options.json:
        write(json.dumps(_as_json(found), indent=2, ensure_ascii=False) + "\n")
        return found.status
    report(*(f"         {fact}" for fact in found.facts))
    if found.machine:
        report("this machine:", *(f"         {fact}" for fact in found.machine))
    report(*(f"{each.severity.value + ':':9}{each.message}" for each in found.findings))
    count = sum(each.severity is Severity.ERROR for each in found.findings)
    errors = "1 error" if count == 1 else f"{count} errors"
    report("ok" if found.status == 0 else f"would not start ({errors})")
    return found.status


@contextmanager
def _warnings_as_findings() -> Iterator[None]:
    """Drop the log's warnings about mounts, which `check_revisions` reports."""
    logger = logging.getLogger(open_repository.__name__)
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


def _with_verdict(found: CheckReport, verdict: TrussVerdict) -> CheckReport:
    more = verdict.findings(found.findings)
    refused = any(each.severity is Severity.ERROR for each in more)
    return replace(
        found,
        findings=[*found.findings, *more],
        settings_wrong=found.settings_wrong or refused,
    )


def examine(truss: Path, config: Path | None) -> CheckReport:
    """Check the settings, the artifacts and this machine."""
    folder = truss if config is None else None
    try:
        content = read_config(truss, config)
        settings, _ = load_configuration(content)
        environment = read_environment()
        require_one_builder(settings)
        image = HostInfo.from_config(content).image
        machine = inspect_machine(environment.variables, image)
        host = HostInfo.from_config(content, host_info(machine))
    except SettingsError as problem:
        return CheckReport([], [error("settings", problem.message)], settings_wrong=True)
    here = _machine_facts(machine)
    facts: list[str] = []
    findings = [*check_jinja(), *check_revisions(settings)]
    answers: Sequence[Answer] = ()
    try:
        if settings.engine_repository is None:
            job = prepare_build(settings, host, environment.hf_access_token)
            source_needs = needs_of_build(settings, job.source, None)
            findings += check_keys(content, settings, None, source_needs, None)
            findings += check_deployment(content, settings, None, source_needs, folder)
            if job.target is not None and not machine.gpus.devices:
                findings.append(_NO_GPU)
            return CheckReport([*job.estimate.sentences], findings, machine=here)
        needs: list[Need] = []
        engine = _describe(settings, environment, host, findings, needs)
        if not engine.is_described:
            findings += check_compatibility(settings, engine, host)
            findings += check_keys(content, settings, None, needs, None)
            findings += check_deployment(content, settings, engine, needs, folder)
            findings += _server(machine, engine, image, environment, here)
            return CheckReport(
                ["engine: a GGUF file, inspected once it is downloaded"], findings, machine=here
            )
        facts += _engine_facts(engine)
        if engine.uses_gpus and not machine.gpus.devices:
            findings.append(_NO_GPU)
        findings += _server(machine, engine, image, environment, here)
        tokenizer = _load_tokenizer(settings, environment)
        if tokenizer is not None:
            facts += _describe_formats(tokenizer, settings, findings)
            answers = tokenizer.templates.shape.answers if tokenizer.templates else ()
        findings += check_compatibility(settings, engine, host)
        findings += check_machine(machine.cuda, machine.limits, engine.gpu_count)
        capacity = cache_capacity(settings, engine, host)
        if capacity is not None:
            facts.append(capacity.summary)
            findings += capacity.diagnostics
        target = ConcurrencyTarget.of(settings, engine, capacity)
        facts.append(target.sentence)
        findings += check_keys(content, settings, engine, needs, target)
        findings += check_deployment(content, settings, engine, needs, folder)
    except SettingsError as problem:
        wrong = [error("settings", problem.message)]
        return CheckReport(facts, wrong, settings_wrong=True, machine=here)
    except TrussError as problem:
        findings.append(error("engine", problem.message))
    return CheckReport(facts, findings, machine=here, chat_template=answers)


def _describe(
    settings: Settings,
    environment: Environment,
    host: HostInfo,
    findings: list[Diagnostic],
    needs: list[Need],
) -> Engine:
    """Describe the engine without downloading weights; check access rights and disk space.

    A remote GGUF file stays undescribed, because its description is inside the file.

    Adds to `findings` and `needs`.
    """
    repository = open_engine(settings, environment)
    adapters = open_adapters(settings, environment)
    applied = [each.adapter for each in adapters]
    described = repository.describe()
    engine = with_settings(described, settings, host.known_version, applied, host.capability)
    try:
        tokenizer = open_tokenizer(settings, environment)
        needs += needs_of(settings, repository, engine, tokenizer, adapters)
        repository.source.check_room(needs[0].paths)
        if tokenizer is not None:
            findings += tokenizer.examine(engine)
    except ArtifactError as problem:
        findings.append(error("artifacts", problem.message))
    if not engine.is_described and not is_remote(settings.engine_repository or ""):
        described = inspect_engine(repository.source.fetch(repository.engine_paths(engine)))
        return with_settings(described, settings)
    return engine


def _load_tokenizer(settings: Settings, environment: Environment) -> TextTokenizer | None:
    """Load the tokenizer; download it, except for one inside a GGUF file.

    Returns:
        None if it cannot be loaded, or not without its authors' code.
    """
    try:
        folder = _tokenizer_folder(settings, environment)
        return None if folder is None else load_tokenizer(folder)
    except ArtifactError:
        return None


def _describe_formats(
    tokenizer: TextTokenizer, settings: Settings, findings: list[Diagnostic]
) -> list[str]:
    """Describe the chat template, and the formats of calls and reasoning derived from it.

    Adds to `findings`.
    """
    limits = settings.serving
    chosen = choose_formats(
        limits.tool_parser, limits.reasoning_parser, tokenizer.templates, tokenizer.added_tokens
    )
    if chosen[0] is None and limits.tool_parser == "auto":
        findings.append(warning("unknown_calls", UNKNOWN_CALLS))
    shape = [tokenizer.templates.shape.sentence] if tokenizer.templates else []
    return [f"chat: {fact}" for fact in (*shape, describe_formats(*chosen))]


def _tokenizer_folder(settings: Settings, environment: Environment) -> Path | None:
    if tokenizer := open_tokenizer(settings, environment):
        return tokenizer.fetch()
    repository = open_engine(settings, environment)
    paths = own_tokenizer_paths(settings, repository)
    is_download = is_remote(settings.engine_repository or "")
    if is_download and any(path.endswith(GGUF_SUFFIX) for path in paths):
        return None
    return repository.source.fetch(paths)


def _engine_facts(engine: Engine) -> list[str]:
    ranks = "1 rank" if engine.world_size == 1 else f"{engine.world_size} ranks"
    return [
        f"engine: {engine.backend}, {ranks}, batch of "
        f"{engine.max_batch_size}, prompt up to {engine.max_input_tokens} of "
        f"{engine.max_sequence_tokens} tokens",
        *engine.facts,
    ]


def _machine_facts(machine: Machine) -> list[str]:
    facts = container_sentences(machine.python, machine.runtime, machine.cuda)
    facts += [
        f"GPU: {gpu.name}, {gpu.free_bytes / 1e9:.1f} GB free" for gpu in machine.gpus.devices
    ]
    if machine.triton is not None:
        facts.append(f"Triton: {machine.triton.executable}")
    return facts


def _server(
    machine: Machine,
    engine: Engine,
    image: str | None,
    environment: Environment,
    here: list[str],
) -> list[Diagnostic]:
    """Find out whether a server here runs the engine; skipped without the engine's GPU.

    Adds to `here`.
    """
    problem = server_problem(machine, engine, image, environment)
    if not problem:
        return []
    if engine.uses_gpus and not machine.gpus.devices:
        here.append(f"not for this engine: {problem}")
        return []
    return [warning("no_backend" if machine.triton else "no_triton", problem)]


def _as_json(report: CheckReport) -> dict[str, Any]:
    findings = [
        {"code": found.code, "severity": found.severity.value, "sentence": found.message}
        for found in report.findings
    ]
    chat_template = [
        {"question": each.question, "answer": each.answer, "shown": each.is_shown}
        for each in report.chat_template
    ]
    return {
        "status": report.status,
        "facts": [*report.machine, *report.facts],
        "findings": findings,
        "chat_template": chat_template,
    }
