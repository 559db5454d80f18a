"""All hostile bodies, for every protocol.

The tests check each answer; `python -m benchmarks hostile` measures what other clients notice.
"""

from __future__ import annotations

from benchmarks.hostile.basic_bodies import BASIC
from benchmarks.hostile.product_bodies import PRODUCTS
from benchmarks.hostile.tool_bodies import TOOLS

CORPUS = [*BASIC, *TOOLS, *PRODUCTS]
