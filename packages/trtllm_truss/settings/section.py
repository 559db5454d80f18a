"""What all sections of `model_metadata` have in common."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, StringConstraints

Repository = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]


class Section(BaseModel):
    """Unknown keys and values of another type are errors; what was read is never changed."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)
