"""The language model of the fake `tensorrtllm` backend: logits that depend on all ids before."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


def logits_after(ids: Sequence[int], vocabulary: int) -> NDArray[np.float32]:
    """Return the logits of the token after some ids."""
    random = np.random.default_rng([len(ids), *ids])
    return random.standard_normal(vocabulary, dtype=np.float32) * 3


def log_probs_after(ids: Sequence[int], vocabulary: int) -> NDArray[np.float64]:
    """Return the log probability of each token after some ids, by definition."""
    logits = logits_after(ids, vocabulary).astype(np.float64)
    return logits - np.log(np.exp(logits).sum())
