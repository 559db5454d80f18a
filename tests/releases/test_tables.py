"""The files of data by release: known columns of the right types, in ranges that do not overlap."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from itertools import pairwise
from typing import Any, get_type_hints

import pytest
from pydantic import TypeAdapter
from tests.support.paths import ROOT

from trtllm_builder.commands import FAMILIES, BuildFlag, Family, FixedFlag
from trtllm_truss.engines.checkpoint.adapters import AdapterModule
from trtllm_truss.engines.checkpoint.argument_table import SECTIONS, Argument
from trtllm_truss.engines.checkpoint.arguments import RuntimeKey
from trtllm_truss.engines.checkpoint.variants import Variant
from trtllm_truss.engines.checkpoint.weights import Architecture, Method, UnreadMethod, Unserved
from trtllm_truss.engines.images import IMAGES, Image, MinimumDriver
from trtllm_truss.engines.quantization import (
    MINIMUM_CAPABILITY,
    QUANTIZATIONS,
    Format,
    KnownQuantization,
)
from trtllm_truss.releases import (
    COMMON,
    FOLDER,
    Fact,
    Release,
    Tensor,
    holds,
    read_file,
    read_table,
    release,
)
from trtllm_truss.settings.runtime import Parameter


@dataclasses.dataclass(frozen=True, kw_only=True)
class WithoutImage:
    """A release that facts are known of."""

    name: str
    source: str


TABLES: dict[str, Callable[..., Any]] = {
    "contract.inputs": Tensor,
    "contract.outputs": Tensor,
    "contract.own_inputs": Tensor,
    "contract.own_outputs": Tensor,
    "images.images": Image,
    "images.drivers": MinimumDriver,
    "images.without_image": WithoutImage,
    "images.gpus": Fact,
    "architectures.architectures": Architecture,
    "architectures.unserved": Unserved,
    "architectures.without_chunks": Fact,
    "architectures.without_reuse": Fact,
    "architectures.chunked_latents": Fact,
    "architectures.without_adapters": Fact,
    "adapters.modules": AdapterModule,
    "number_formats.formats": Format,
    "number_formats.quantizations": KnownQuantization,
    "number_formats.weight_formats": Method,
    "number_formats.unread_weights": UnreadMethod,
    "llm_arguments.decoding_kinds": Variant,
    "llm_arguments.sparse_attention_kinds": Variant,
    "parameters.model_fields": Parameter,
    "parameters.parameters": Parameter,
    "parameters.parameters_left_out": Parameter,
    "builds.flags": BuildFlag,
    "facts.facts": Fact,
    "builds.fixed_flags": FixedFlag,
    "builds.families": Family,
    "checkpoint_keys.keys": RuntimeKey,
    **{f"llm_arguments.{section}": Argument for section in SECTIONS},
}
"""The type of the rows of every section."""
KEYS = {"images.images": "tag", "images.drivers": "cuda", "builds.flags": "setting"}
"""The column of the names, where it is not `name`."""
KNOWN = {release(image.tensorrt_llm)[:2] for image in IMAGES} | {
    release(name) for name in read_file("images")["without_image"]
}

each_table = pytest.mark.parametrize("table", TABLES)


def rows_of(table: str) -> tuple[Any, ...]:
    file, _, section = table.partition(".")
    return read_table(file, section, TABLES[table], KEYS.get(table, "name"))


def test_every_section_is_a_table() -> None:
    sections = {
        f"{file.stem}.{section}"
        for file in FOLDER.glob("*.toml")
        for section in read_file(file.stem).keys() - {COMMON}
    }
    assert sections == TABLES.keys()


@each_table
def test_rows_have_the_types_of_their_columns_and_a_source(table: str) -> None:
    columns = {name: TypeAdapter(hint) for name, hint in get_type_hints(TABLES[table]).items()}
    for row in rows_of(table):
        for name, column in columns.items():
            column.validate_python(getattr(row, name), strict=True)
        assert row.source.strip(), row


@each_table
def test_ranges_are_of_known_releases_and_do_not_overlap(table: str) -> None:
    by_name: dict[str, list[tuple[Release, Release | None]]] = {}
    for row in rows_of(table):
        columns = {field.name: getattr(row, field.name) for field in dataclasses.fields(row)}
        for name, value in columns.items():
            if name.endswith(("since", "until")) and value:
                assert value[:2] in KNOWN, row
        if "since" in columns:
            name = columns[KEYS.get(table, "name")]
            by_name.setdefault(name, []).append((row.since, columns.get("until")))
    for ranges in by_name.values():
        assert all(until is None or since < until for since, until in ranges), ranges
        for (_, until), (since, _) in pairwise(ranges):
            assert until is not None, ranges
            assert until <= since, ranges


def test_an_architecture_is_in_one_family() -> None:
    architectures = [name for family in FAMILIES for name in family.architectures]
    assert len(architectures) == len(set(architectures))


@pytest.mark.parametrize(
    ("name", "version", "expected"),
    [
        ("ids_are_text", "0.9.0", False),
        ("ids_are_text", "0.10.0", True),
        ("ids_are_text", (0, 9), False),
        ("volta_kernels", "0.15.0.post1", True),
        ("volta_kernels", "0.16.0", False),
        ("torch_sampler_has_seeds", "1.3.0rc24", False),
        ("torch_sampler_has_seeds", "1.3.0", True),
        ("frees_guides", "latest", False),
        ("frees_guides", None, True),
    ],
)
def test_facts_hold_in_their_releases(
    name: str, version: str | Release | None, expected: bool
) -> None:
    assert holds(name, version) == expected
    assert not holds(name, None, unknown=False)


def test_quantizations_have_known_formats() -> None:
    named = {row.format for row in QUANTIZATIONS.values() if row.format}
    assert named == MINIMUM_CAPABILITY.keys()
    algorithms = {row.algorithm for row in rows_of("number_formats.weight_formats")}
    assert algorithms - {None} <= QUANTIZATIONS.keys()


def test_every_fact_is_asked_for() -> None:
    code = "".join(
        path.read_text(encoding="utf-8")
        for folder in ("packages", "workbench")
        for path in (ROOT / folder).rglob("*.py")
    )
    assert [name for name in read_file("facts")["facts"] if f'"{name}"' not in code] == []
