"""What a model's authors recommend, as far as OpenAI's fields can say it."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from trtllm_truss.errors import InvalidRequest
from trtllm_truss.protocols.openai.completions import parse_completion

logger = logging.getLogger(__name__)


def usable_defaults(recommended: Mapping[str, Any]) -> dict[str, Any]:
    """The values of `generation_config.json` that a body could hold as well.

    Others, such as a `top_k` of -1 that means no limit, or null, would have every request refused
    that does not say something else.

    Args:
        recommended: by the names of `transformers`, which are those of the predict body.
    """
    usable = {}
    for name, value in recommended.items():
        try:
            parse_completion({"prompt": "Hello", name: value}, {})
        except InvalidRequest as refused:
            logger.warning("generation_config.json: %s is not used: %s", name, refused.message)
        else:
            usable[name] = value
    return usable
