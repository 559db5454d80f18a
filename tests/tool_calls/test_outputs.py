"""Written outputs of every format, and their expected contents."""

from __future__ import annotations

import pytest
from tests.tool_calls.parsing import FORMATS, cases, parse, parts


@pytest.mark.parametrize("name", FORMATS)
def test_outputs_have_their_parts(name: str) -> None:
    found = {case.output: parts(parse([case.output], name)) for case in cases(name)}
    assert found == {case.output: case.parts for case in cases(name)}


@pytest.mark.parametrize("name", FORMATS)
def test_there_are_forty_outputs_of_each_format(name: str) -> None:
    assert len({case.output for case in cases(name)}) >= 40
