"""The tables of docs/importing.md; the other text is written by hand."""

from __future__ import annotations

from collections.abc import Sequence

from tools.docs.tables import in_cells, table

from trtllm_workbench.importers.command_lines import DOCKER
from trtllm_workbench.importers.reading import IMPORTERS
from trtllm_workbench.importers.rules import OptionRule, Outcome


def importing_tables() -> dict[str, str]:
    """Return the tables by their names in the page."""
    parts = []
    for kind, importer in IMPORTERS.items():
        if kind == "lmi":
            continue
        title = importer.table.title.replace("`", "")
        is_name = " " not in title  # such as vLLM
        parts.append(f"## {title if is_name else title[:1].upper() + title[1:]}\n")
        for heading, rules in importer.table.sections.items():
            parts += [f"### {heading}\n" if kind == "baseten" else f"**{heading}**\n"]
            parts.append(_rows(rules, f"{heading.strip('`')}."))
    parts += ["## `docker run`\n", _rows(list(DOCKER.values()), "docker ")]
    return {"importers": "\n".join(parts)}


def _rows(rules: Sequence[OptionRule], prefix: str) -> str:
    """Return a table; options with the same outcome and sentence share a row."""
    together: dict[tuple[str, str], list[str]] = {}
    for rule in rules:
        names = ", ".join(f"`{name.removeprefix(prefix)}`" for name in (rule.name, *rule.aliases))
        together.setdefault((rule.outcome.value, _sentence(rule)), []).append(names)
    rows = [
        [cell, *outcome] for outcome, names in together.items() for cell in in_cells(sorted(names))
    ]
    return table(["option", "outcome", ""], rows)


def _sentence(rule: OptionRule) -> str:
    if rule.outcome is not Outcome.MAPPED:
        only = f" ({', '.join(f'`{value}`' for value in rule.only)} only)" if rule.only else ""
        return rule.reason + only
    targets = [f"`{rule.target}`"] if rule.target else []
    if rule.checkpoint:
        targets.append(f"for a checkpoint `{rule.checkpoint}`")
    if rule.name == rule.target.removeprefix("runtime.llm_args."):
        targets = ["`runtime.llm_args`, by the same name"]
    elif rule.target == f"runtime.{rule.name.partition('.')[2]}":
        targets = ["`runtime`, by the same name"]
    elif rule.name.partition("patch_kwargs.")[2] == rule.target.removeprefix("runtime.llm_args."):
        targets = ["`runtime.llm_args`, by the same name"]
    return "; ".join(targets) + (f" ({rule.reason})" if rule.reason else "")
