"""One line in the log for every request."""

from __future__ import annotations

import logging

logger = logging.getLogger("trtllm_truss.requests")


def log_request(**fields: str | int | float | None) -> None:
    """Says how a request went, for eyes as `key=value` and for machines as fields of the record.

    Truss's JSON formatter carries such fields as keys of their own, and adds the platform's
    `request_id` itself. A field that is None is left out.

    Args:
        fields: numbers and words of our own; never anything of the prompt, the answer or a header.
    """
    known = {name: value for name, value in fields.items() if value is not None}
    line = " ".join(f"{name}={value}" for name, value in known.items())
    logger.info("request %s", line, extra=known)
