from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.support.gguf_writer import Typed, header
from tests.text.tokenizer_zoo import tokenizer_of
from tokenizers import pre_tokenizers

from trtllm_truss.errors import ArtifactError
from trtllm_truss.text.tokenizer import TextTokenizer, load_tokenizer

ALPHABET = sorted(pre_tokenizers.ByteLevel.alphabet())
TOKENS = ["<s>", "</s>", "<eot>", *ALPHABET, "he", "hello", "12", "<think>"]
NORMAL, CONTROL, USER_DEFINED = 1, 3, 4


def description(**changes: Any) -> dict[str, Any]:
    types = [CONTROL] * 3 + [NORMAL] * (len(TOKENS) - 4) + [USER_DEFINED]
    keys = {
        "model": "gpt2",
        "pre": "gpt-2",
        "tokens": TOKENS,
        "token_type": Typed("i", types),
        "merges": ["h e", "1 2"],
        "bos_token_id": Typed("I", 0),
        "eos_token_id": Typed("I", 1),
        "eot_token_id": Typed("I", 2),
        **changes,
    }
    return {f"tokenizer.ggml.{key}": value for key, value in keys.items() if value is not None}


def load(folder: Path, **changes: Any) -> TextTokenizer:
    path = folder / "model.gguf"
    path.write_bytes(header(description(**changes)))
    return load_tokenizer(path)


def texts_of(tokenizer: TextTokenizer, text: str) -> list[str]:
    return [tokenizer.decode([token_id]) for token_id in tokenizer.encode(text)]


def test_smollm2_is_rebuilt() -> None:
    tokenizer = tokenizer_of("smollm2")
    assert tokenizer.vocab_size == 49152
    assert tokenizer.eos_ids == (2,)
    assert tokenizer.bos_id == 1
    assert tokenizer.pad_id == 2
    assert tokenizer.special_ids == frozenset(range(17))
    # The ids of OpenVINO GenAI's tokenizer for the same file.
    assert tokenizer.encode("Hi 12 <|im_end|>") == [26843, 216, 33, 34, 216, 2]
    code = [198, 197, 1604, 275, 24, 104, 727, 1003, 1792, 1903, 216, 34, 216, 357, 506, 216]
    ids = tokenizer.encode("\n\tdef f(x): return x ** 2  it's 2024")
    assert ids == [*code, 34, 32, 34, 36]
    text = "Größe 🤖 日本語\n\tdef f(x): return x ** 2"
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_token_types_and_end_ids(tmp_path: Path) -> None:
    tokenizer = load(tmp_path)
    assert tokenizer.eos_ids == (1, 2)
    assert tokenizer.special_ids == {0, 1, 2}
    assert texts_of(tokenizer, "<think>he</s>") == ["<think>", "he", ""]


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("gpt-2", ["12", " ", "he", "\n", "\n"]),
        ("smollm", ["1", "2", " ", "he", "\n", "\n"]),
        ("qwen2", ["1", "2", " ", "he", "\n", "\n"]),
        ("llama-bpe", ["12", " ", "he", "\n", "\n"]),
    ],
)
def test_pre_tokenizers(tmp_path: Path, kind: str, words: list[str]) -> None:
    tokenizer = load(tmp_path, pre=kind, add_bos_token=Typed("?", False))
    assert texts_of(tokenizer, "12 he\n\n") == words


def test_llama_takes_whole_words_before_merges(tmp_path: Path) -> None:
    changes = {"add_bos_token": Typed("?", False)}
    assert texts_of(load(tmp_path, pre="llama-bpe", **changes), "hello") == ["hello"]
    assert texts_of(load(tmp_path, pre="gpt-2", **changes), "hello") == ["he", "l", "l", "o"]


def test_bos_is_added_by_the_flag_or_by_the_kind(tmp_path: Path) -> None:
    assert load(tmp_path).encode("he")[0] != 0
    assert load(tmp_path, add_bos_token=Typed("?", True)).encode("he")[0] == 0
    assert load(tmp_path, pre="llama-bpe").encode("he")[0] == 0
    assert load(tmp_path, pre="llama-bpe").encode("he", add_special_tokens=False)[0] != 0


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"model": "llama"}, "'llama'"),
        ({"pre": "tekken"}, "'tekken'"),
        ({"model": None}, "None"),
        ({"tokens": None}, "tokens"),
        ({"merges": ["h"]}, "completely"),
        ({"merges": ["h nothing"]}, "completely"),
        ({"token_type": Typed("i", [1])}, "completely"),
        ({"bos_token_id": Typed("I", 9999)}, "completely"),
    ],
)
def test_unsupported_tokenizers_are_refused_with_the_remedy(
    tmp_path: Path, changes: dict[str, Any], named: str
) -> None:
    with pytest.raises(ArtifactError, match=named) as refused:
        load(tmp_path, **changes)
    assert "model.gguf" in refused.value.message
    assert "tokenizer_repository" in refused.value.message
