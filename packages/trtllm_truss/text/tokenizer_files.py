"""Reader of tokenizers stored in Hugging Face's layout: `tokenizer.json` and optional files.

`tokenizer.json` is the tokenizer; if it is missing, it is built from the other files.
`tokenizer_config.json` and `special_tokens_map.json` name the special tokens,
`generation_config.json` (or else a model's `config.json`) lists the ids that end a text and may set
sampling defaults, and the chat template is in `chat_template.jinja` or in `tokenizer_config.json`,
further ones in `additional_chat_templates/`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from tokenizers import AddedToken, Tokenizer

from trtllm_truss.engines.json_files import JsonObject
from trtllm_truss.errors import ArtifactError
from trtllm_truss.text.tokenizer_conversion import convert_tokenizer
from trtllm_truss.text.tokenizer_growth import MAX_GROWTH, growth
from trtllm_truss.text.tokenizer_parts import TokenizerParts
from trtllm_truss.text.tokenizer_schemas import (
    MAX_TOKEN_CHARACTERS,
    ROLES,
    EndIds,
    GenerationConfig,
    TokenizerConfig,
    as_list,
    named_templates,
)
from trtllm_truss.validation import broken_rule, dotted_path, shown, shown_name

_SAMPLING = ("temperature", "top_p", "top_k", "repetition_penalty")
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
    ends_file = folder / "generation_config.json"
    generation = ends = _read_object(ends_file, GenerationConfig)
    if not generation:
        ends_file = folder / "config.json"
        ends = _read_object(ends_file, EndIds)

    declared = {**special_tokens, **config}
    named_tokens = {role: text for role in ROLES if (text := _content(declared.get(role)))}
    special = _complete_vocabulary(backend, config.get("added_tokens_decoder") or {})
    _mark_special(backend, [*special, *named_tokens.values(), *_additional_tokens(declared)])
    _check_vocabulary(folder, backend)

    def id_of(role: str) -> int | None:
        return backend.token_to_id(named_tokens[role]) if role in named_tokens else None

    return TokenizerParts(
        backend=backend,
        eos_ids=_distinct([id_of("eos_token"), *_end_ids(ends_file, ends, backend)]),
        bos_id=id_of("bos_token"),
        pad_id=id_of("pad_token"),
        named_tokens=named_tokens,
        chat_templates=_read_chat_templates(folder, config),
        sampling={name: generation[name] for name in _SAMPLING if name in generation},
    )


def _read_backend(path: Path) -> Tokenizer:
    try:
        return Tokenizer.from_file(str(path))
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
    for token_id, token in backend.get_added_tokens_decoder().items():
        if len(token.content) > MAX_TOKEN_CHARACTERS:
            raise ArtifactError(
                f"the tokenizer in {folder} has the added token {shown(token.content)} (id "
                f"{token_id}) of {len(token.content)} characters; at most {MAX_TOKEN_CHARACTERS} "
                "are allowed. Correct tokenizer.json, or name another tokenizer_repository."
            )


def _end_ids(path: Path, ends: Mapping[str, Any], backend: Tokenizer) -> list[int]:
    ids: list[int] = as_list(ends.get("eos_token_id"))
    size = backend.get_vocab_size(with_added_tokens=True)
    for token_id in ids:
        if token_id >= size and backend.id_to_token(token_id) is None:
            raise ArtifactError(
                f"{path}: eos_token_id holds the id {token_id}; the tokenizer's ids end at "
                f"{size - 1}. {_REMEDY}"
            )
    return ids


def _read_object(path: Path, schema: type[JsonObject]) -> dict[str, Any]:
    """Read a JSON object and check the fields of a schema; a missing file is an empty object."""
    if not path.exists():
        return {}
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ArtifactError(
            f"{path} cannot be read as JSON ({error}); download it again."
        ) from error
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
    """Return chat templates by name; files win over `tokenizer_config.json`."""
    declared = named_templates(config.get("chat_template"))
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
    for token_id, token in sorted((int(key), token) for key, token in declared.items()):
        if backend.token_to_id(token["content"]) is None and token_id == backend.get_vocab_size():
            flags = {key: token[key] for key in _FLAGS if token.get(key) is not None}
            backend.add_tokens([AddedToken(token["content"], **flags)])
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
