"""Behaviour that differs from the real library's, by row of `selftest`'s table of assumptions.

`TLLM_FAKE_OTHERWISE` lists the ids of rows that are wrong.
"""

import os

OTHERWISE = frozenset(os.environ.get("TLLM_FAKE_OTHERWISE", "").split())
