"""`init`: write a Truss for an engine, ready to push."""

from __future__ import annotations

import argparse
import shlex
from dataclasses import replace
from pathlib import Path

import yaml

from trtllm_truss.cli.common import echo, report, require_empty
from trtllm_truss.settings.loading import read_environment
from trtllm_workbench.cli.import_ import report_options
from trtllm_workbench.scaffold.documents import (
    config_text,
    next_commands,
    readme_text,
    write_folder,
)
from trtllm_workbench.scaffold.origin import read_origin
from trtllm_workbench.scaffold.planning import InitOptions, make_plan


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "engine",
        metavar="ENGINE",
        help="org/name[@revision] on Hugging Face, s3://bucket/prefix, a folder (./…), "
        "package://NAME, or settings of another server (docs/importing.md): an engine, a "
        "checkpoint, a serving.properties, a config.yaml with trt_llm, a quoted command line",
    )
    parser.add_argument(
        "--tokenizer", metavar="REPO", help="its tokenizer, in the same forms (default: ENGINE's)"
    )
    parser.add_argument(
        "--adapter",
        action="append",
        default=[],
        metavar="NAME=REPO",
        help="a LoRA adapter of a checkpoint; may be repeated",
    )
    parser.add_argument(
        "--output", type=Path, metavar="DIR", help="a new or empty folder (default: ENGINE's name)"
    )
    parser.add_argument(
        "--accelerator", metavar="NAME[:N]", help="GPUs, such as H100:2 (default: the smallest)"
    )
    parser.add_argument(
        "--trust-remote-code",
        action="store_true",
        help="run Python code of the tokenizer or checkpoint; plain data never needs it",
    )
    parser.add_argument(
        "--instance-type",
        metavar="SKU",
        help="Baseten's name of an instance, such as L4:4x16, in place of --accelerator",
    )
    parser.add_argument(
        "--node-count", type=int, metavar="N", help="hosts that share the engine (default: 1)"
    )
    parser.add_argument(
        "--no-weights",
        action="store_true",
        help="let the start download the files, not the platform deliver them",
    )
    parser.add_argument(
        "--no-egress",
        action="store_true",
        help="let the container reach no other host; the platform delivers all files",
    )
    parser.add_argument(
        "--server",
        choices=("truss", "own"),
        default="truss",
        help="truss: Truss's server, as Baseten runs it (default); own: a faster one with the "
        "routes that routers and gateways need, for Docker and Kubernetes",
    )
    parser.add_argument("--image", metavar="NAME", help="an image of yours (default: NVIDIA's)")


def run(options: argparse.Namespace) -> int:
    """Write the folder and print what was chosen, with the reasons.

    Raises:
        SettingsError: an option is wrong, nothing fits the engine, or the folder is not empty.
        ArtifactError: a repository is unreadable, or holds no engine or no tokenizer.
    """
    if options.output is not None:
        require_empty(options.output)
    init_options = InitOptions(
        engine=options.engine,
        tokenizer=options.tokenizer,
        adapters=options.adapter,
        accelerator=options.accelerator,
        instance_type=options.instance_type,
        node_count=options.node_count,
        weights=not options.no_weights,
        egress=not options.no_egress,
        image=options.image,
        own_server=options.server == "own",
        trust_remote_code=options.trust_remote_code,
    )
    environment = read_environment()
    origin = read_origin(init_options.engine, init_options.gpus, environment.hf_access_token)
    report_options(origin.rows, origin.ignored)
    plan = make_plan(init_options, origin, environment)
    output: Path = options.output or Path(plan.name)
    require_empty(output)
    config = config_text(plan)
    findings = [*plan.findings, *plan.check(yaml.safe_load(config))]
    plan = replace(plan, findings=findings)
    texts = {"config.yaml": config, "README.md": readme_text(plan)}
    write_folder(output.absolute(), texts, list(plan.requirements))
    report(f"{plan.name}: {plan.kind}")
    image = f"{plan.runtime.image}: " if plan.runtime.image else ""
    report(f"image: {image}{plan.runtime.reason}")
    if plan.place is not None:
        report(f"accelerator: {plan.place.accelerator}: {plan.place.reason}")
    if plan.target is not None:
        report(plan.target.sentence)
    for note in filter(None, (plan.consent, *plan.notes)):
        echo(f"note: {note}")
    for finding in plan.findings:
        echo(f"{finding.severity.value}: {finding.message}")
    report(*next_commands(plan, shlex.quote(str(output))))
    return 0
