"""Types shared by the sections of `model_metadata`."""

from __future__ import annotations

from typing import Annotated

from pydantic import StringConstraints

Repository = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]
