"""Read a tokenizer from the metadata of a GGUF file.

Converters to GGUF store a byte-level BPE tokenizer as model `gpt2`: its tokens, their types and
merges, and in `tokenizer.ggml.pre` the *name* of its pre-tokenizer, whose rules are built into
readers of the format (https://github.com/ggml-org/llama.cpp, `src/llama-vocab.cpp`). The supported
names are those of the models that OpenVINO GenAI reads from GGUF.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
)

from trtllm_truss.errors import ArtifactError
from trtllm_truss.gguf import read_metadata
from trtllm_truss.text.tokenizer_parts import MAX_ADDED_TOKENS, TokenizerParts

_CONTROL = 3  # token_type of a special token


_USER_DEFINED = 4  # token_type of a token that is matched before BPE but is ordinary text


_GGUF_REMEDY = "put the model's tokenizer.json into its folder, or name a tokenizer_repository"


_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|%s"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@dataclass(frozen=True)
class _PreTokenizer:
    """Rules that split text into words before BPE.

    Attributes:
        digits: make every digit a word, before splitting into words.
        words: expression that finds words; None for GPT-2's.
        whole_words: skip the merges for a word that is a token, and add BOS by default.
    """

    digits: bool = False
    words: str | None = None
    nfc: bool = False
    whole_words: bool = False

    def build(self) -> pre_tokenizers.PreTokenizer:
        steps: list[pre_tokenizers.PreTokenizer] = []
        if self.digits:
            steps.append(pre_tokenizers.Digits(individual_digits=True))
        if self.words is not None:
            steps.append(pre_tokenizers.Split(Regex(self.words), "isolated"))
        steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=self.words is None))
        return pre_tokenizers.Sequence(steps)


_PRE_TOKENIZERS = {
    "gpt-2": _PreTokenizer(),
    "smollm": _PreTokenizer(digits=True),
    "llama-bpe": _PreTokenizer(words=_WORDS % r"\p{N}{1,3}", whole_words=True),
    "qwen2": _PreTokenizer(words=_WORDS % r"\p{N}", nfc=True),
}


def read_gguf_tokenizer(path: Path) -> TokenizerParts:
    """Rebuild the tokenizer described by a GGUF file.

    Raises:
        ArtifactError: the file cannot be read, or contains no supported tokenizer; the message
            gives the kind and the remedy.
    """
    metadata = read_metadata(path)
    try:
        return _rebuild(path, metadata)
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise ArtifactError(
            f"{path} does not describe its tokenizer completely ({error!r}); {_GGUF_REMEDY}."
        ) from error


def _rebuild(path: Path, metadata: dict[str, Any]) -> TokenizerParts:
    model = metadata.get("tokenizer.ggml.model")
    kind = metadata.get("tokenizer.ggml.pre", "gpt-2")
    if model != "gpt2" or kind not in _PRE_TOKENIZERS:
        raise ArtifactError(
            f"{path} has a tokenizer of model {model!r} and pre-tokenizer {kind!r}, which is not "
            f"read from GGUF; {_GGUF_REMEDY}."
        )
    rules = _PRE_TOKENIZERS[kind]
    tokens: list[str] = metadata["tokenizer.ggml.tokens"]

    def id_of(role: str) -> int | None:
        key = f"tokenizer.ggml.{role}_token_id"
        token_id = metadata.get(key)
        if token_id is not None and (
            not isinstance(token_id, int) or not 0 <= token_id < len(tokens)
        ):
            raise ValueError(f"{key} is {token_id!r}; the ids end at {len(tokens) - 1}")
        return token_id

    def text_of(role: str) -> str | None:
        token_id = id_of(role)
        return None if token_id is None else tokens[token_id]

    backend = _byte_level_bpe(metadata, rules)
    bos, bos_id = text_of("bos"), id_of("bos")
    if bos is not None and metadata.get("tokenizer.ggml.add_bos_token", rules.whole_words):
        backend.post_processor = processors.TemplateProcessing(
            single=[bos, "$A"], pair=[bos, "$A", "$B"], special_tokens=[(bos, bos_id)]
        )
    roles = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}
    template = metadata.get("tokenizer.chat_template")
    if not isinstance(template, str | None):
        raise TypeError("tokenizer.chat_template is not a string")
    ends = [id_of("eos"), id_of("eot")]
    return TokenizerParts(
        backend=backend,
        eos_ids=tuple(dict.fromkeys(end for end in ends if end is not None)),
        bos_id=bos_id,
        pad_id=id_of("padding"),
        named_tokens={name: text for name, role in roles.items() if (text := text_of(role))},
        chat_templates={} if template is None else {"default": template},
    )


def _byte_level_bpe(metadata: dict[str, Any], rules: _PreTokenizer) -> Tokenizer:
    tokens: list[str] = metadata["tokenizer.ggml.tokens"]
    types: list[int] = metadata["tokenizer.ggml.token_type"]
    merges = [tuple(merge.split(" ", 1)) for merge in metadata["tokenizer.ggml.merges"]]
    vocabulary = {token: token_id for token_id, token in enumerate(tokens)}
    added = types.count(_CONTROL) + types.count(_USER_DEFINED)
    if added > MAX_ADDED_TOKENS:
        raise ValueError(f"{added:,} added tokens; at most {MAX_ADDED_TOKENS:,} are allowed")
    try:
        model = models.BPE(vocabulary, merges, ignore_merges=rules.whole_words)
    except Exception as error:  # the library raises nothing more specific
        raise ValueError(str(error)) from error
    backend = Tokenizer(model)
    backend.pre_tokenizer = rules.build()
    backend.decoder = decoders.ByteLevel()
    if rules.nfc:
        backend.normalizer = normalizers.NFC()

    def of_type(wanted: int) -> list[AddedToken]:
        return [
            AddedToken(token, normalized=False, special=wanted == _CONTROL)
            for token, kind in zip(tokens, types, strict=True)
            if kind == wanted
        ]

    backend.add_special_tokens(of_type(_CONTROL))
    backend.add_tokens(of_type(_USER_DEFINED))
    return backend
