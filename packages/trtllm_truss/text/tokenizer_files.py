"""Read a tokenizer in Hugging Face's layout.

`tokenizer.json` is the tokenizer; if it is missing, it is built from the other files.
`tokenizer_config.json` and `special_tokens_map.json` list the special tokens.
`generation_config.json` may set sampling defaults. EOS ids come from its `eos_token_id`, otherwise
from a model's `config.json`, otherwise from that file's `text_config`. The chat template is in
`chat_template.jinja`, in `tokenizer_config.json`, or in `chat_template.json`, the file of
processors; further ones are in `additional_chat_templates/`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from tokenizers import AddedToken, Tokenizer, processors

from trtllm_truss.errors import ArtifactError
from trtllm_truss.json_files import JsonObject
from trtllm_truss.text.growth import MAX_GROWTH, growth
from trtllm_truss.text.tokenizer_conversion import convert_tokenizer
from trtllm_truss.text.tokenizer_parts import (
    MAX_ADDED_TOKENS,
    MAX_AROUND_TOKENS,
    MAX_TOKEN_CHARACTERS,
    ROLES,
    TokenizerParts,
)
from trtllm_truss.text.tokenizer_schemas import (
    EndIds,
    GenerationConfig,
    ModelConfig,
    TemplateFile,
    TokenizerConfig,
    as_list,
    named_templates,
)
from trtllm_truss.validation import broken_rule, dotted_path, shown, shown_name

_SAMPLING = [name for name in GenerationConfig.model_fields if name not in EndIds.model_fields]
_MAX_IDS = 1 << 22
"""Upper limit of a tokenizer's ids: 16 times the largest vocabulary of a current model."""

_REMEDY = "Correct it, or name another tokenizer_repository."
_FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")


def read_tokenizer_folder(folder: Path, *, trust_remote_code: bool = False) -> TokenizerParts:
    """Read the tokenizer in a folder.

    Truncation and padding of `tokenizer.json` are switched off: they are leftovers of training and
    would silently shorten prompts.

    Raises:
        ArtifactError: a file cannot be read, or has a wrong value.
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
        ArtifactError: it is not a JSON object, or has a wrong value.
    """
    return _sampling(_object(path, content, GenerationConfig))


def _sampling(generation: Mapping[str, Any]) -> dict[str, Any]:
    return {name: generation[name] for name in _SAMPLING if generation.get(name) is not None}


_MAX_FILE_BYTES = 1 << 28
_MAX_OBJECTS = 2 * MAX_ADDED_TOKENS
"""Objects in a tokenizer.json: one per added token, and braces within its tokens."""


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
    if content.count(b"{") > _MAX_OBJECTS:  # before the library spends minutes on them
        raise ArtifactError(
            f"{path} has more than {MAX_ADDED_TOKENS:,} added tokens, the most that are allowed. "
            f"{_REMEDY}"
        )
    try:
        return Tokenizer.from_buffer(content)
    except Exception as error:  # the library raises nothing more specific
        raise ArtifactError(
            f"{path} cannot be read as a tokenizer ({error}); download it again, or save it anew "
            "with the `tokenizers` library."
        ) from error


def _check_vocabulary(folder: Path, backend: Tokenizer) -> None:
    """Refuse values that would cost memory or requests later.

    Raises:
        ArtifactError: an id, an added token or a replacement is far larger than in any model.
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
    """Read the EOS ids, and the file that lists them.

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
"""Classes in which `add_bos_token` overrides the post-processor of `tokenizer.json`.

Source: transformers 4.57.1, `update_post_processor` of `models/{llama,code_llama,gemma,cohere}/
tokenization_*_fast.py`. Other classes ignore the flag.
"""


def _set_bos(backend: Tokenizer, config: Mapping[str, Any], bos: str | None) -> None:
    """Let prompts start with BOS or not, according to `add_bos_token`."""
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
    """Read a JSON object and check its fields against a schema.

    A missing file is an empty object.
    """
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
        raise ArtifactError(f"{path} does not contain a JSON object; download it again.")
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

    Separate files take precedence over `tokenizer_config.json`, and that over `chat_template.json`.
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
        The contents of all declared special tokens.
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
    """Mark tokens of the vocabulary as special, without extending it beyond the engine's."""
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
