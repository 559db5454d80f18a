"""Readers of stored tokenizers: Hugging Face's layout, and the metadata of a GGUF file.

`tokenizer.json` is the tokenizer; if it is missing, it is built from the other files.
`tokenizer_config.json` and `special_tokens_map.json` name the special tokens.
`generation_config.json` may set sampling defaults. The ids that end a text are its `eos_token_id`,
else that of a model's `config.json`, else that of its `text_config`. The chat template is in
`chat_template.jinja`, in `tokenizer_config.json`, or in `chat_template.json`, the file of
processors; further ones are in `additional_chat_templates/`.

Converters to GGUF store a byte-level BPE tokenizer as model `gpt2`: its tokens, their types and
merges, and in `tokenizer.ggml.pre` the *name* of its pre-tokenizer, whose rules are built into the
readers of the format (https://github.com/ggml-org/llama.cpp, `src/llama-vocab.cpp`). The names
known here are those of the models that OpenVINO GenAI reads from GGUF.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Protocol

from pydantic import BeforeValidator, Field, ValidationError
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
from trtllm_truss.json_files import INT32_MAX, JsonObject
from trtllm_truss.text.tokenizer_conversion import convert_tokenizer
from trtllm_truss.validation import broken_rule, dotted_path, shown, shown_name


@dataclass(frozen=True)
class TokenizerParts:
    """A tokenizer as stored on disk.

    Attributes:
        backend: the tokenizer of the `tokenizers` library, its special tokens marked.
        eos_ids: every id that ends a text, the tokenizer's own first.
        bos_id: the id that begins a text, if any.
        pad_id: the id that fills up a batch, if any.
        named_tokens: contents by role (`bos_token`, `eos_token` …), for chat templates.
        chat_templates: Jinja sources by name; the usual one is called `default`.
        sampling: the authors' sampling defaults, by the names of `transformers` (`temperature`,
            `top_p` …); values unchecked.
    """

    backend: Tokenizer
    eos_ids: tuple[int, ...] = ()
    bos_id: int | None = None
    pad_id: int | None = None
    named_tokens: Mapping[str, str] = field(default_factory=dict)
    chat_templates: Mapping[str, str] = field(default_factory=dict)
    sampling: Mapping[str, Any] = field(default_factory=dict)


_CONTROL = 3  # token_type of a special token
_USER_DEFINED = 4  # token_type of a token that is matched before BPE, but is ordinary text
_GGUF_REMEDY = "put the model's tokenizer.json into its folder, or name a tokenizer_repository"

_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|%s"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@dataclass(frozen=True)
class _PreTokenizer:
    """Rules that cut text into words before BPE.

    Attributes:
        digits: make every digit a word, before words are found.
        words: the expression that finds words; None is GPT-2's.
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
    """Rebuild the tokenizer that a GGUF file describes.

    Raises:
        ArtifactError: the file cannot be read, or holds no tokenizer of a supported kind; the
            message names it and the remedy.
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
    except Exception as error:  # the library raises nothing more precise
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


ROLES = (
    "bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token",
)  # fmt: skip
"""Special tokens with a name, which chat templates use."""

MAX_TOKEN_CHARACTERS = 4096
MAX_ADDED_TOKENS = 65_536
"""Seconds of a start. Those of current models have up to 6,500."""
MAX_AROUND_TOKENS = 64
"""Special tokens that a tokenizer adds to each prompt."""
MAX_END_IDS = 64
"""Ids that end a text; each request sends all of them to the engine."""


def as_list(value: Any) -> list[Any]:
    """Return a value that may stand for a list of one, or be absent, as a list."""
    if value is None:
        return []
    return value if isinstance(value, list) else [value]


def _text_of(token: Any) -> Any:
    """Return the text of a token, stored as a string or as the fields of an `AddedToken`."""
    return token.get("content") if isinstance(token, Mapping) else token


def named_templates(value: Any) -> list[Any]:
    """Return `chat_template`, one text or a list of named ones, as the latter."""
    return as_list({"name": "default", "template": value} if isinstance(value, str) else value)


_Text = Annotated[str, Field(max_length=MAX_TOKEN_CHARACTERS)]
_Token = Annotated[_Text | None, BeforeValidator(_text_of)]
_Id = Annotated[str, Field(pattern=r"^[0-9]{1,9}$")]
_Number = Annotated[float, Field(allow_inf_nan=False)]


class _AddedToken(JsonObject):
    content: _Text
    single_word: bool = False
    lstrip: bool = False
    rstrip: bool = False
    normalized: bool = False
    special: bool = False


class _Template(JsonObject):
    name: str
    template: str


class TemplateFile(JsonObject):
    """`chat_template.json`."""

    chat_template: Annotated[list[_Template], BeforeValidator(named_templates)] = Field(
        default_factory=list
    )


class TokenizerConfig(TemplateFile):
    """`tokenizer_config.json` and `special_tokens_map.json`."""

    tokenizer_class: str = ""
    add_bos_token: bool | None = None

    bos_token: _Token = None
    eos_token: _Token = None
    unk_token: _Token = None
    sep_token: _Token = None
    pad_token: _Token = None
    cls_token: _Token = None
    mask_token: _Token = None
    additional_special_tokens: Annotated[
        list[_Token], Field(max_length=MAX_ADDED_TOKENS), BeforeValidator(as_list)
    ] = Field(default_factory=list)
    added_tokens_decoder: Annotated[dict[_Id, _AddedToken], Field(max_length=MAX_ADDED_TOKENS)] = (
        Field(default_factory=dict)
    )


class EndIds(JsonObject):
    """Ids that end a text."""

    eos_token_id: Annotated[
        list[Annotated[int, Field(ge=0, le=INT32_MAX)]],
        Field(max_length=MAX_END_IDS),
        BeforeValidator(as_list),
    ] = Field(default_factory=list)


class ModelConfig(EndIds):
    """A model's `config.json`; one with several parts has a `text_config`."""

    text_config: EndIds = Field(default_factory=EndIds)


class GenerationConfig(EndIds):
    """`generation_config.json`; the ranges are those of `transformers`."""

    temperature: Annotated[_Number, Field(ge=0)] = 1.0
    top_p: Annotated[_Number, Field(ge=0, le=1)] = 1.0
    top_k: Annotated[int, Field(ge=-1, le=INT32_MAX)] = 0
    min_p: Annotated[_Number, Field(ge=0, le=1)] = 0.0
    repetition_penalty: Annotated[_Number, Field(gt=0)] = 1.0


MAX_GROWTH = 64
"""Characters for one. SentencePiece's own rules have 18, for U+FDFA."""


class Component(Protocol):
    def __getstate__(self) -> bytes: ...


def growth(component: Component | None) -> int:
    """Return a bound of the characters that a component makes of one; 1 if there is none.

    Only the texts that a file can choose count, not the forms of Unicode.
    """
    return 1 if component is None else _growth(json.loads(component.__getstate__()))


def _growth(step: Mapping[str, Any]) -> int:
    """Source of the fields: `tokenizers`, `normalizers/` and `decoders/` (0.23)."""
    text = step.get("content") if step.get("type") == "Replace" else step.get("prepend")
    if isinstance(text, str):
        return len(text)
    if step.get("type") == "Precompiled":
        return _longest_replacement(step["precompiled_charsmap"])
    product = 1
    for part in (*step.get("normalizers", ()), *step.get("decoders", ())):
        product *= max(1, _growth(part))
    return product


def _longest_replacement(charsmap: str) -> int:
    """Return the length of the longest text in SentencePiece's map of characters.

    Its layout is the size of a trie (4 bytes), the trie, and texts that end in NUL
    (https://github.com/google/sentencepiece, `src/normalizer.cc`, `DecodePrecompiledCharsMap`).
    """
    content = base64.b64decode(charsmap)
    texts = content[4 + int.from_bytes(content[:4], "little") :]
    return max(len(text.decode(errors="replace")) for text in texts.split(b"\0"))


_SAMPLING = [name for name in GenerationConfig.model_fields if name not in EndIds.model_fields]
_MAX_IDS = 1 << 22
"""Bound of a tokenizer's ids: 16 times the largest vocabulary of a current model."""

_REMEDY = "Correct it, or name another tokenizer_repository."
_FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")


def read_tokenizer_folder(folder: Path, *, trust_remote_code: bool = False) -> TokenizerParts:
    """Read the tokenizer of a folder.

    Truncation and padding of `tokenizer.json` are switched off: they are leftovers of training and
    would silently shorten prompts.

    Raises:
        ArtifactError: one of the files cannot be read, or has a wrong value.
    """
    file = folder / "tokenizer.json"
    if file.exists():
        backend = _read_backend(file)
    else:
        backend = convert_tokenizer(folder, trust_remote_code=trust_remote_code)
    backend.no_truncation()
    backend.no_padding()
    return _assemble(folder, backend)


def _assemble(folder: Path, backend: Tokenizer) -> TokenizerParts:
    config = _read_object(folder / "tokenizer_config.json", TokenizerConfig)
    special_tokens = _read_object(folder / "special_tokens_map.json", TokenizerConfig)
    generation = _read_object(folder / "generation_config.json", GenerationConfig)
    declared = {**special_tokens, **config}
    named_tokens = {role: text for role in ROLES if (text := _content(declared.get(role)))}
    special = _complete_vocabulary(backend, config.get("added_tokens_decoder") or {})
    _mark_special(backend, [*special, *named_tokens.values(), *_additional_tokens(declared)])
    _set_bos(backend, config, named_tokens.get("bos_token"))
    _check_vocabulary(folder, backend)

    def id_of(role: str) -> int | None:
        return backend.token_to_id(named_tokens[role]) if role in named_tokens else None

    return TokenizerParts(
        backend=backend,
        eos_ids=_distinct([id_of("eos_token"), *_end_ids(folder, backend)]),
        bos_id=id_of("bos_token"),
        pad_id=id_of("pad_token"),
        named_tokens=named_tokens,
        chat_templates=_read_chat_templates(folder, config),
        sampling=_sampling(generation),
    )


def read_sampling(path: str, content: bytes) -> dict[str, Any]:
    """Return the authors' sampling defaults in `generation_config.json`; see `TokenizerParts`.

    Raises:
        ArtifactError: it is no JSON object, or has a wrong value.
    """
    return _sampling(_object(path, content, GenerationConfig))


def _sampling(generation: Mapping[str, Any]) -> dict[str, Any]:
    return {name: generation[name] for name in _SAMPLING if generation.get(name) is not None}


_MAX_FILE_BYTES = 1 << 28
_MAX_OBJECTS = 2 * MAX_ADDED_TOKENS
"""Objects in a tokenizer.json: one for each added token, and braces within its tokens."""


def _read_backend(path: Path) -> Tokenizer:
    try:
        size = path.stat().st_size
        content = path.read_bytes() if size <= _MAX_FILE_BYTES else b""
    except OSError as error:
        raise ArtifactError(f"{path} cannot be read ({error}); download it again.") from error
    if size > _MAX_FILE_BYTES:
        raise ArtifactError(
            f"{path} has {size:,} bytes; at most {_MAX_FILE_BYTES:,} are allowed. {_REMEDY}"
        )
    if content.count(b"{") > _MAX_OBJECTS:  # before the library takes minutes for them
        raise ArtifactError(
            f"{path} has more than {MAX_ADDED_TOKENS:,} added tokens, the most that are allowed. "
            f"{_REMEDY}"
        )
    try:
        return Tokenizer.from_buffer(content)
    except Exception as error:  # the library raises nothing more precise
        raise ArtifactError(
            f"{path} cannot be read as a tokenizer ({error}); download it again, or save it anew "
            "with the `tokenizers` library."
        ) from error


def _check_vocabulary(folder: Path, backend: Tokenizer) -> None:
    """Refuse what would cost memory or requests later.

    Raises:
        ArtifactError: an id, an added token or a replacement is far larger than that of any model.
    """
    largest = max(backend.get_vocab(with_added_tokens=True).values(), default=0)
    if largest >= _MAX_IDS:
        raise ArtifactError(
            f"the tokenizer in {folder} has the id {largest}; ids must be less than {_MAX_IDS}. "
            "Correct tokenizer.json, or name another tokenizer_repository."
        )
    for name, component in (("normalizer", backend.normalizer), ("decoder", backend.decoder)):
        longer = growth(component)
        if longer > MAX_GROWTH:
            raise ArtifactError(
                f"the {name} of the tokenizer in {folder} makes {longer} characters of one; at "
                f"most {MAX_GROWTH} are allowed. Correct tokenizer.json, or name another "
                "tokenizer_repository."
            )
    around = backend.num_special_tokens_to_add(False)
    if around > MAX_AROUND_TOKENS:
        raise ArtifactError(
            f"the post_processor of the tokenizer in {folder} adds {around:,} tokens to each "
            f"prompt; at most {MAX_AROUND_TOKENS} are allowed. {_REMEDY}"
        )
    added = backend.get_added_tokens_decoder()
    if len(added) > MAX_ADDED_TOKENS:
        raise ArtifactError(
            f"the tokenizer in {folder} has {len(added):,} added tokens; at most "
            f"{MAX_ADDED_TOKENS:,} are allowed. {_REMEDY}"
        )
    for token_id, token in added.items():
        if len(token.content) > MAX_TOKEN_CHARACTERS:
            raise ArtifactError(
                f"the tokenizer in {folder} has the added token {shown(token.content)} (id "
                f"{token_id}) of {len(token.content)} characters; at most {MAX_TOKEN_CHARACTERS} "
                "are allowed. Correct tokenizer.json, or name another tokenizer_repository."
            )


def read_end_ids(folder: Path) -> tuple[Path, list[int]]:
    """Read the ids that end a text, and the file that names them.

    Raises:
        ArtifactError: a file cannot be read, or has a wrong value.
    """
    file = folder / "generation_config.json"
    ids = as_list(_read_object(file, GenerationConfig).get("eos_token_id"))
    if not ids:
        file = folder / "config.json"
        config = _read_object(file, ModelConfig)
        ids = as_list(config.get("eos_token_id"))
        ids = ids or as_list((config.get("text_config") or {}).get("eos_token_id"))
    return file, ids


def _end_ids(folder: Path, backend: Tokenizer) -> list[int]:
    path, ids = read_end_ids(folder)
    size = backend.get_vocab_size(with_added_tokens=True)
    for token_id in ids:
        if token_id >= size and backend.id_to_token(token_id) is None:
            raise ArtifactError(
                f"{path}: eos_token_id holds the id {token_id}; the tokenizer's ids end at "
                f"{size - 1}. {_REMEDY}"
            )
    return ids


_OBEYS_ADD_BOS = re.compile(r"(Llama|CodeLlama|Gemma|Cohere)Tokenizer(Fast)?")
"""Classes whose `add_bos_token` replaces the post-processor of `tokenizer.json`.

Source: transformers 4.57.1, `update_post_processor` of `models/{llama,code_llama,gemma,cohere}/
tokenization_*_fast.py`. Other classes ignore the flag.
"""


def _set_bos(backend: Tokenizer, config: Mapping[str, Any], bos: str | None) -> None:
    """Let prompts begin with BOS, or not, as `add_bos_token` says."""
    wanted = config.get("add_bos_token")
    bos_id = None if bos is None else backend.token_to_id(bos)
    known = _OBEYS_ADD_BOS.fullmatch(config.get("tokenizer_class") or "")
    if known is None or wanted is None or bos_id is None:
        return
    around = backend.encode("").ids
    if (around[:1] == [bos_id]) == wanted:
        return
    after = around[1:] if around[:1] == [bos_id] else around
    added = [*([bos_id] if wanted else []), *after]
    names = {id_: f"ADDED{id_}" for id_ in added}
    backend.post_processor = processors.TemplateProcessing(
        single=[*([names[bos_id]] if wanted else []), "$A", *(names[id_] for id_ in after)],
        pair=None,
        special_tokens=[
            {"id": name, "ids": [id_], "tokens": [backend.id_to_token(id_)]}
            for id_, name in names.items()
        ],
    )


def _read_object(path: Path, schema: type[JsonObject]) -> dict[str, Any]:
    """Read a JSON object and check the fields of a schema; a missing file is an empty object."""
    if not path.exists():
        return {}
    try:
        content = path.read_bytes()
    except OSError as error:
        raise _unreadable(str(path), error) from error
    return _object(str(path), content, schema)


def _unreadable(path: str, error: Exception) -> ArtifactError:
    return ArtifactError(f"{path} cannot be read as JSON ({error}); download it again.")


def _object(path: str, content: bytes, schema: type[JsonObject]) -> dict[str, Any]:
    try:
        value = json.loads(content.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise _unreadable(path, error) from error
    if not isinstance(value, dict):
        raise ArtifactError(f"{path} does not hold a JSON object; download it again.")
    try:
        schema.model_validate(value)
    except ValidationError as error:
        finding: dict[str, Any] = dict(error.errors(include_url=False)[0])
        path_to_it = [
            shown_name(part) if isinstance(part, str) else part for part in finding["loc"]
        ]
        rule = broken_rule(finding, dotted_path(path_to_it))
        raise ArtifactError(f"{path}: {rule}. {_REMEDY}") from None
    return value


def _read_chat_templates(folder: Path, config: Mapping[str, Any]) -> dict[str, str]:
    """Return chat templates by name.

    Files of their own win over `tokenizer_config.json`, and that over `chat_template.json`.
    """
    declared = named_templates(config.get("chat_template"))
    if not declared:
        of_processor = _read_object(folder / "chat_template.json", TemplateFile)
        declared = named_templates(of_processor.get("chat_template"))
    templates = {entry["name"]: entry["template"] for entry in declared}
    files = {"default": folder / "chat_template.jinja"}
    files |= {file.stem: file for file in folder.glob("additional_chat_templates/*.jinja")}
    for name, file in files.items():
        if file.exists():
            try:
                templates[name] = file.read_text(encoding="utf-8")
            except (OSError, ValueError) as error:
                raise ArtifactError(
                    f"{file} cannot be read ({error}); download it again."
                ) from error
    return templates


def _complete_vocabulary(backend: Tokenizer, declared: Mapping[str, Any]) -> list[str]:
    """Add tokens that only `tokenizer_config.json` lists, if they get the id stated there.

    Returns:
        The contents of all declared tokens that are special.
    """
    next_id, missing = backend.get_vocab_size(), dict[str, AddedToken]()
    for token_id, token in sorted((int(key), token) for key, token in declared.items()):
        content = token["content"]
        if token_id != next_id or content in missing or backend.token_to_id(content) is not None:
            continue
        flags = {key: token[key] for key in _FLAGS if token.get(key) is not None}
        missing[content] = AddedToken(content, **flags)
        next_id += 1
    backend.add_tokens([*missing.values()])
    return [token["content"] for token in declared.values() if token.get("special")]


def _mark_special(backend: Tokenizer, contents: Iterable[str]) -> None:
    """Mark tokens of the vocabulary as special; never extend it beyond the engine's."""
    added = backend.get_added_tokens_decoder().values()
    special = {token.content for token in added if token.special}
    backend.add_special_tokens(
        [
            AddedToken(content, special=True, normalized=False)
            for content in dict.fromkeys(contents)
            if content not in special and backend.token_to_id(content) is not None
        ]
    )


def _additional_tokens(declared: Mapping[str, Any]) -> list[str]:
    tokens = as_list(declared.get("additional_special_tokens"))
    return [content for token in tokens if (content := _content(token))]


def _content(token: Any) -> str | None:
    """Return the text of a token, stored as a string or as the fields of an `AddedToken`."""
    content = token.get("content") if isinstance(token, dict) else token
    return content if isinstance(content, str) else None


def _distinct(ids: Iterable[int | None]) -> tuple[int, ...]:
    return tuple(dict.fromkeys(token_id for token_id in ids if token_id is not None))
