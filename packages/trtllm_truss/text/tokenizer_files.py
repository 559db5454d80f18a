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

from tokenizers import AddedToken, Tokenizer

from trtllm_truss.errors import ArtifactError
from trtllm_truss.text.tokenizer_conversion import convert_tokenizer
from trtllm_truss.text.tokenizer_parts import TokenizerParts

_ROLES = (
    "bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token",
)  # fmt: skip
_SAMPLING = ("temperature", "top_p", "top_k", "repetition_penalty")
_FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")


def read_tokenizer_folder(folder: Path, *, trust_remote_code: bool = False) -> TokenizerParts:
    """Read the tokenizer of a folder.

    Truncation and padding of `tokenizer.json` are switched off: they are leftovers of training and
    would silently shorten prompts.

    Raises:
        ArtifactError: one of the files cannot be read.
    """
    file = folder / "tokenizer.json"
    if file.exists():
        backend = _read_backend(file)
    else:
        backend = convert_tokenizer(folder, trust_remote_code=trust_remote_code)
    backend.no_truncation()
    backend.no_padding()
    try:
        return _assemble(folder, backend)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ArtifactError(
            f"the tokenizer's configuration in {folder} is malformed ({error!r}); download "
            "tokenizer_config.json and the other tokenizer files again."
        ) from error


def _assemble(folder: Path, backend: Tokenizer) -> TokenizerParts:
    config = _read_object(folder / "tokenizer_config.json")
    special_tokens = _read_object(folder / "special_tokens_map.json")
    generation = _read_object(folder / "generation_config.json")
    ends = generation or _read_object(folder / "config.json")

    declared = {**special_tokens, **config}
    named_tokens = {role: text for role in _ROLES if (text := _content(declared.get(role)))}
    special = _complete_vocabulary(backend, config.get("added_tokens_decoder") or {})
    _mark_special(backend, [*special, *named_tokens.values(), *_additional_tokens(declared)])

    def id_of(role: str) -> int | None:
        return backend.token_to_id(named_tokens[role]) if role in named_tokens else None

    return TokenizerParts(
        backend=backend,
        eos_ids=_distinct([id_of("eos_token"), *_as_list(ends.get("eos_token_id"))]),
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


def _read_object(path: Path) -> dict[str, Any]:
    """Read a JSON object; a missing file is an empty one."""
    if not path.exists():
        return {}
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ArtifactError(
            f"{path} cannot be read as JSON ({error}); download it again."
        ) from error
    if not isinstance(value, dict):
        raise ArtifactError(f"{path} does not hold a JSON object; download it again.")
    return value


def _read_chat_templates(folder: Path, config: Mapping[str, Any]) -> dict[str, str]:
    """Return chat templates by name; files win over `tokenizer_config.json`."""
    declared = config.get("chat_template")
    if isinstance(declared, str):
        declared = [{"name": "default", "template": declared}]
    templates = {entry["name"]: entry["template"] for entry in _as_list(declared)}
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
            flags = {key: value for key, value in token.items() if key in _FLAGS}
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
    tokens = _as_list(declared.get("additional_special_tokens"))
    return [content for token in tokens if (content := _content(token))]


def _content(token: Any) -> str | None:
    """Return the text of a token, stored as a string or as the fields of an `AddedToken`."""
    content = token.get("content") if isinstance(token, dict) else token
    return content if isinstance(content, str) else None


def _as_list(value: Any) -> list[Any]:
    if value is None:
        return []
    return value if isinstance(value, list) else [value]


def _distinct(ids: Iterable[int | None]) -> tuple[int, ...]:
    return tuple(dict.fromkeys(token_id for token_id in ids if token_id is not None))
