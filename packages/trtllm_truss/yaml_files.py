"""YAML within limits; a few hundred bytes can mean billions of values or endless nesting."""

from __future__ import annotations

from typing import Any

import yaml
from yaml.composer import ComposerError

MAX_VALUES = 100_000
"""Maximum values in a file, each counted as often as aliases repeat it."""

MAX_DEPTH = 64


class Loader(yaml.SafeLoader):
    """Refuses aliases that multiply values or contain themselves, and deep nesting.

    PyYAML creates one object for everything that an alias repeats, so a file of 400 bytes with nine
    aliases in each of eleven lists is small until something traverses it.
    """

    def get_single_node(self) -> Any:
        node = super().get_single_node()
        if node is not None and self._values(node, {}) > MAX_VALUES:
            raise _error(f"it has more than {MAX_VALUES:,} values, aliases written out", node)
        return node

    def compose_node(self, parent: Any, index: Any) -> Any:
        self._depth = getattr(self, "_depth", 0) + 1
        if self._depth > MAX_DEPTH:
            place = self.peek_event()  # type: ignore[no-untyped-call]
            raise _error(f"it is nested more than {MAX_DEPTH} levels deep", place)
        try:
            return super().compose_node(parent, index)
        finally:
            self._depth -= 1

    def _values(self, node: yaml.Node, known: dict[yaml.Node, int | None]) -> int:
        """Return the values below a node, including itself."""
        if not isinstance(node, yaml.CollectionNode):
            return 1
        if node in known:
            if (count := known[node]) is None:
                raise _error("an alias contains itself", node)
            return count
        known[node] = None
        count = 1
        for item in node.value:
            parts = item if isinstance(node, yaml.MappingNode) else (item,)
            count += sum(self._values(part, known) for part in parts)
        known[node] = count
        return count


def _error(problem: str, place: Any) -> ComposerError:
    return ComposerError(None, None, problem, place.start_mark)


def load(text: str, loader: type[Loader] = Loader) -> Any:
    """Parse one document.

    Raises:
        yaml.YAMLError: it is invalid, or exceeds a limit.
    """
    return yaml.load(text, loader)  # noqa: S506 - a safe one
