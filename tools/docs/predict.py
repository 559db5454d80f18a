"""The table of docs/predict.md; the other text is written by hand."""

from __future__ import annotations

from tools.docs.tables import field_rows, table

from trtllm_truss.protocols.predict import ALIASES, PredictBody
from trtllm_truss.request_fields import rows_of


def predict_tables() -> dict[str, str]:
    fields, shared = PredictBody.model_fields, rows_of("predict")
    names = [*(name for name in fields if name not in shared), *shared]
    rows = [
        [_with_aliases(name), *cells]
        for name, (_, *cells) in zip(names, field_rows(PredictBody, names), strict=True)
    ]
    return {"fields": table(["field", "default", "meaning"], rows)}


def _with_aliases(name: str) -> str:
    others = ", ".join(f"`{alias}`" for alias, field in ALIASES.items() if field == name)
    return f"`{name}` ({others})" if others else f"`{name}`"
