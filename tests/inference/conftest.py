"""Fixtures of the request tests."""

from __future__ import annotations

import pytest
from tests.support.smollm2 import smollm2_tokenizer

from trtllm_truss.text.tokenizer import TextTokenizer


@pytest.fixture
def tokenizer() -> TextTokenizer:
    return smollm2_tokenizer()
