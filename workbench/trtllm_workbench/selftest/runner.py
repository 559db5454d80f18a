"""Run the steps in order and collect their results.

One step compares our `tensorrt_llm` model with the template in the image, field by field. The
templates are `config.pbtxt` files with placeholders such as ``${triton_max_batch_size}`` instead of
numbers, booleans and data types; such values are not compared.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from google.protobuf import text_format

from trtllm_truss.engines.engine import ModelConfig
from trtllm_truss.engines.host import HostInfo
from trtllm_truss.errors import SettingsError
from trtllm_truss.machine.describe import inspect_machine
from trtllm_truss.releases import MODEL_NAME
from trtllm_truss.serving.preparation import host_info
from trtllm_truss.settings.runtime import PARAMETERS
from trtllm_truss.triton.model_repository import CONFIG_FILE, read_config, render_repository
from trtllm_truss.triton.protobuf import model_config_pb2
from trtllm_truss.triton.server.ports import unused_ports
from trtllm_workbench.selftest import answer_checks, engine_checks
from trtllm_workbench.selftest.engine_checks import facts, machine_checks
from trtllm_workbench.selftest.served_model import (
    ChildServer,
    Failed,
    Passed,
    Report,
    Result,
    ServedModel,
    Skipped,
    run_check,
)
from trtllm_workbench.selftest.subjects import (
    Kind,
    Subject,
    engine_subject,
    kinds_here,
    make_served_model,
    own_subject,
    served_config,
    tiny_subject,
    write_truss,
)

PLACES = tuple(
    f"{folder}/inflight_batcher_llm/{MODEL_NAME}/config.pbtxt"
    for folder in (
        "app/all_models",
        "app/tensorrt_llm/triton_backend/all_models",
        "app/triton_backend/all_models",
        "app/tensorrtllm_backend/all_models",
        "opt/tritonserver/all_models",
    )
)
"""Paths of the template in images, relative to ``/``."""

_OPEN_TYPE = re.compile(r"(data_type\s*:\s*)\$\{\w+\}")
_OPEN_FLAG = re.compile(r"(decoupled\s*:\s*)\$\{\w+\}")
_OPEN_NUMBER = re.compile(r'(?<!")\$\{\w+\}(?!")')
_OMITTED = frozenset(row.name for row in PARAMETERS if row.default is None)
"""Keys omitted on purpose: the backend acts on their blank values."""

_COMMENT = re.compile(r"^\s*#.*$", re.MULTILINE)


def find_template(root: Path = Path("/")) -> Path | None:
    """Return the template of this machine's image, if it has one."""
    return next((root / place for place in PLACES if (root / place).is_file()), None)


def read_template(path: Path) -> model_config_pb2.ModelConfig:
    """Parse a template; data types that are placeholders become ``TYPE_INVALID``.

    Raises:
        SettingsError: the file is missing or invalid.
    """
    try:
        text = _COMMENT.sub("", path.read_text(encoding="utf-8"))
        text = _OPEN_TYPE.sub(r"\1TYPE_INVALID", text)
        text = _OPEN_NUMBER.sub("1", _OPEN_FLAG.sub(r"\1true", text))
        return text_format.Parse(text, model_config_pb2.ModelConfig(), allow_unknown_field=True)
    except (OSError, UnicodeDecodeError, text_format.ParseError) as error:
        raise SettingsError(f"{path} is not a readable Triton model config: {error}.") from error


def differences(
    ours: model_config_pb2.ModelConfig, template: model_config_pb2.ModelConfig
) -> list[str]:
    """List every tensor in which our configuration differs, and every key that it does not have."""
    found = [*_tensors("input", ours.input, template.input)]
    found += _tensors("output", ours.output, template.output)
    left_out = template.parameters.keys() - ours.parameters.keys() - _OMITTED
    return found + [f"parameter {key}: missing in ours" for key in sorted(left_out)]


def unknown_keys(
    ours: model_config_pb2.ModelConfig, template: model_config_pb2.ModelConfig
) -> list[str]:
    """Return the parameters that the template does not have; its backend ignores them."""
    return sorted(ours.parameters.keys() - template.parameters.keys())


def _tensors(kind: str, ours: Iterable[Any], theirs: Iterable[Any]) -> list[str]:
    mine, yours = ({tensor.name: tensor for tensor in side} for side in (ours, theirs))
    found = [f"{kind} {name}: missing in ours" for name in yours.keys() - mine.keys()]
    found += [f"{kind} {name}: not in the template" for name in mine.keys() - yours.keys()]
    for name in mine.keys() & yours.keys():
        one, other = _fields(mine[name]), _fields(yours[name])
        if yours[name].data_type == model_config_pb2.TYPE_INVALID:
            del one["data_type"], other["data_type"]
        found += [
            f"{kind} {name}: {field} is {one[field]}, the template's {other[field]}"
            for field in one
            if one[field] != other[field]
        ]
    return sorted(found)


def _fields(tensor: Any) -> dict[str, object]:
    fields: dict[str, object] = {
        "data_type": model_config_pb2.DataType.Name(tensor.data_type),
        "dims": list(tensor.dims),
        "reshape": list(tensor.reshape.shape) if tensor.HasField("reshape") else "none",
    }
    if isinstance(tensor, model_config_pb2.ModelInput):
        fields["optional"] = tensor.optional
        fields["allow_ragged_batch"] = tensor.allow_ragged_batch
    return fields


Check = Callable[[ServedModel], Passed]

_CHECKS: tuple[tuple[str, str, Check], ...] = (
    ("text", "exact text", answer_checks.exact_text),
    ("text", "whole characters", answer_checks.whole_characters),
    ("text", "one text in all forms", answer_checks.forms_agree),
    ("stop", "stop words", answer_checks.stop_words),
    ("stop", "stop words in the engine", answer_checks.engine_stop_words),
    ("seeds", "seeds", answer_checks.seeds),
    ("seeds", "temperature", answer_checks.temperature),
    ("logprobs", "log probabilities", answer_checks.log_probabilities),
    ("guides", "guided decoding", answer_checks.guided_decoding),
    ("protocols", "predict", answer_checks.predict),
    ("protocols", "completions", answer_checks.completions),
    ("protocols", "chat completions", answer_checks.chat_completions),
    ("protocols", "responses", answer_checks.responses),
    ("protocols", "messages", answer_checks.messages),
    ("protocols", "invocations (LMI)", answer_checks.invocations),
    ("protocols", "Triton gRPC", answer_checks.triton_grpc),
    ("protocols", "Triton HTTP", answer_checks.triton_http),
    ("bodies", "bad bodies", answer_checks.bad_bodies),
    ("cancellation", "cancellation", engine_checks.cancellation),
    ("cancellation", "cancellation in the engine", engine_checks.engine_cancellation),
    ("overload", "overload", engine_checks.overload),
)
_AFTER_SPEED: tuple[tuple[str, str, Check], ...] = (
    ("restart", "killed rank", engine_checks.killed_rank),
    ("restart", "restart", engine_checks.restart),
    ("end", "nothing left over", engine_checks.nothing_left),
)
SERVED_STEPS = tuple(
    dict.fromkeys((*(row[0] for row in _CHECKS), "speed", *(row[0] for row in _AFTER_SPEED)))
)
MACHINE_STEPS = ("machine", "template")
STEPS = (*MACHINE_STEPS, *SERVED_STEPS)
"""The step names for `--only` and `--skip`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """Models and steps to run.

    Attributes:
        steps: some of `STEPS`.
        ranks: numbers of ranks of tiny models; empty means one, and as many as there are GPUs.
        kinds: kinds of tiny models; empty means those that this machine can run.
        config: the user's own parsed configuration; None for another engine.
        truss: folder of its Truss.
        base: folder to which its relative paths refer.
        engine: an engine repository; None for tiny models.
        tokenizer: its tokenizer's repository; None for the engine's.
        template: template to compare with; None for the image's.
        quick: measure less.
    """

    steps: Collection[str] = STEPS
    ranks: Sequence[int] = ()
    kinds: Sequence[Kind] = ()
    config: Mapping[str, Any] | None = None
    truss: Path = Path()
    base: Path = Path()
    engine: str | None = None
    tokenizer: str | None = None
    template: Path | None = None
    quick: bool = False


@dataclass(slots=True)
class Runner:
    """One run.

    Attributes:
        order: what to run.
        work: empty folder for models and Trusses; its owner removes it.
        report: called with each result.
        log: called with each line of a server's log, and with other progress.
    """

    order: Order
    work: Path
    report: Callable[[Result], None]
    log: Callable[[str], None]
    results: list[Result] = field(default_factory=list)

    def run(self) -> Report:
        """Run all steps and return the report."""
        started = time.monotonic()
        config = self.order.config or {}
        machine = inspect_machine(image=HostInfo.from_config(config).image)
        host = host_info(machine)
        steps = set(self.order.steps)
        subjects = list(self._subjects(host))
        if "machine" in steps:
            ranks = max((subject.ranks for subject in subjects), default=1)
            for name, check in machine_checks(machine, ranks, self.work):
                self._check("", "machine", name, check)
        if "template" in steps:
            here = HostInfo.from_config(config, host)
            self._check("", "template", "config.pbtxt", partial(self._compare, here, subjects[0]))
        if steps & set(SERVED_STEPS):
            for subject in subjects:
                self._serve(subject, host)
        return Report(facts(machine), self.results, time.monotonic() - started)

    def _check(self, subject: str, step: str, name: str, check: Callable[[], Passed]) -> None:
        result = run_check(subject, step, name, check)
        self.results.append(result)
        self.report(result)

    def _subjects(self, host: HostInfo) -> Iterator[Subject]:
        order = self.order
        if order.config is not None:
            yield own_subject(order.truss, order.config, order.base)
        elif order.engine is not None:
            yield engine_subject(order.engine, order.tokenizer)
        else:
            gpus = len(host.gpus or ())
            for kind in order.kinds or kinds_here(gpus > 0):
                for ranks in order.ranks or sorted({1, gpus or 1}):
                    yield tiny_subject(kind, ranks, self.work, host)

    def _compare(self, host: HostInfo, subject: Subject) -> Passed:
        template = self.order.template or find_template()
        if template is None:
            raise Skipped("this machine has no template of NVIDIA's; name one with --template")
        version = host.version_for(subject.built_version())
        rendered = render_repository(
            self._data() / "triton_model_repository",
            self.work / "compared",
            ModelConfig(self.work, {}, inputs=(), outputs=()),
            backend="tensorrtllm",
            max_batch_size=1,
            tensorrt_llm_version=version,
        )
        ours = read_config(rendered / MODEL_NAME / CONFIG_FILE)
        theirs = read_template(template)
        if found := differences(ours, theirs):
            raise Failed(
                f"{template} differs from ours for TensorRT-LLM {version}: {'; '.join(found)}"
            )
        unknown = unknown_keys(ours, theirs)
        note = f"; it lacks {', '.join(unknown)}, which its backend ignores" if unknown else ""
        return Passed(
            f"{len(ours.input)} inputs, {len(ours.output)} outputs and {len(ours.parameters)} "
            f"parameters for TensorRT-LLM {version} equal {template}{note}"
        )

    def _data(self) -> Path:
        if self.order.config is None:
            return self._truss() / "data"
        return self.order.truss / str(self.order.config.get("data_dir", "data"))

    def _truss(self) -> Path:
        folder = self.work / "truss"
        if not folder.exists():
            write_truss(folder)
        return folder

    def _serve(self, subject: Subject, host: HostInfo) -> None:
        """Serve a subject and run its checks; if it does not start, there is one result."""
        steps, quick = self.order.steps, self.order.quick
        opened = ExitStack()

        def start() -> Passed:
            truss = subject.truss or self._truss()
            config, grpc, http = served_config(subject, self.work)
            (port,) = unused_ports(1)
            server = opened.enter_context(
                ChildServer(truss, config, port, self.work / "t", self.log)
            )
            models.append(make_served_model(config, server, grpc, http, host=host, quick=quick))
            return Passed(
                f"ready after {server.seconds:.1f} s", {"start_s": round(server.seconds, 1)}
            )

        models: list[ServedModel] = []
        with opened:
            self._check(subject.name, "start", "start", start)
            for model in models:
                for step, name, check in _checks_of(model):
                    if step in steps:
                        self._check(subject.name, step, name, partial(check, model))


def _checks_of(model: ServedModel) -> Iterator[tuple[str, str, Check]]:
    yield from _CHECKS
    for streams in sorted({1, engine_checks.most_streams(model)}):
        name = f"speed, {streams} stream{'s' if streams > 1 else ''}"
        yield "speed", name, partial(engine_checks.speed, streams=streams)
    yield from _AFTER_SPEED
