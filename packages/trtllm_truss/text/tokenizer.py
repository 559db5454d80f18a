"""The tokenizer of the served model."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar

from jinja2 import TemplateError

from trtllm_truss.artifacts.listing import select_tokenizer
from trtllm_truss.conversation.templates import ModelTemplates, with_remedy
from trtllm_truss.conversation.writing import CallWriter, Written, write_as_json
from trtllm_truss.errors import ArtifactError, InvalidRequest
from trtllm_truss.gguf import GGUF_SUFFIX
from trtllm_truss.text.chat_template import ChatTemplate, ControlTokens, MisfitMessages
from trtllm_truss.text.decoding import Decoding, LibraryPanic, choose_decoding, panics_as_errors
from trtllm_truss.text.gguf_tokenizer import read_gguf_tokenizer
from trtllm_truss.text.template_limits import RENDER_LIMIT_S, TemplateLimitError
from trtllm_truss.text.tokenizer_files import read_tokenizer_folder
from trtllm_truss.text.tokenizer_parts import TokenizerParts

_TEMPLATES = ("default", "tool_use")
"""The templates that are used, by their names in `transformers`."""

_NONE_SHOWN = frozenset[str]()
_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"

_LONG_CHARACTERS = 1 << 15
"""Longer texts are encoded only if they may fit: a token takes microseconds and a kilobyte."""

_HOPELESS_CHARACTERS = 8
"""Characters for each token of the limit, twice the usual, beyond which a conversation's texts are
counted before a template runs: it takes several times as long, and holds the interpreter's lock."""

_TAIL_MARGIN_TOKENS = 64
"""Tokens at the start of a tail that may depend on the text before it."""

_GIVEN_UP = "Onig: Regex search error"
"""Part of the panic message of `tokenizers` at Oniguruma's limits (onig 6.5, `lib.rs`)."""

_BACKTRACES = ("RUST_BACKTRACE", "RUST_LIB_BACKTRACE")
"""Variables with which each text that makes the library panic would log 90 lines."""

_CUT_TOKENS = 8
"""Tokens that a cut can add to a text."""

Item = TypeVar("Item")
Checkpoint = Callable[[], None]


def _go_on() -> None: ...


class TooManyTokens(Exception):
    """A text has more tokens than `encode` was allowed."""


class TextTokenizer:
    """Converts text to ids and back. Immutable, and safe to share between threads.

    Attributes:
        eos_ids: all EOS ids, the tokenizer's own first; may be empty.
        bos_id: BOS id, if any.
        pad_id: padding id, if any.
        vocab_size: number of tokens, including added ones.
        special_ids: ids of special tokens, hidden in decoded text by default.
        added_tokens: texts of special tokens, and of other tokens that are never part of a word.
        sampling: the authors' sampling defaults; see `TokenizerParts`.
        chat_template: source of the chat template, and of the one for tools if they differ.
        templates: the chat templates and their properties; None without one.
    """

    def __init__(self, parts: TokenizerParts) -> None:
        self._backend = parts.backend
        self._named_tokens = parts.named_tokens
        self.eos_ids = parts.eos_ids
        self.bos_id = parts.bos_id
        self.pad_id = parts.pad_id
        self.sampling = parts.sampling
        self.vocab_size = self._backend.get_vocab_size(with_added_tokens=True)
        added = self._backend.get_added_tokens_decoder()
        special = {id_: token.content for id_, token in added.items() if token.special}
        self.special_ids = frozenset(special)
        self._special = frozenset(special.values())
        self.added_tokens = frozenset(token.content for token in added.values())
        self.chat_template = "\n".join(
            parts.chat_templates[name] for name in _TEMPLATES if name in parts.chat_templates
        )
        self._template_sources = parts.chat_templates
        compiled = {name: ChatTemplate(source) for name, source in parts.chat_templates.items()}
        for template in compiled.values():
            template.try_out(self._named_tokens)
        self.templates = (
            ModelTemplates(compiled, self._named_tokens) if "default" in compiled else None
        )
        self._control_tokens = {
            name: ControlTokens(special.values(), source)
            for name, source in parts.chat_templates.items()
        }
        self._decodings = {(True, _NONE_SHOWN): choose_decoding(self._backend)}
        self._token_texts: dict[int, str] = {}

    def save(self, folder: Path, context_tokens: int) -> None:
        """Write the tokenizer in Hugging Face's layout, for a program that encodes prompts itself.

        Args:
            folder: created by this call.
            context_tokens: the engine's limit of prompt and output.
        """
        ids = {"bos_token_id": self.bos_id, "eos_token_id": list(self.eos_ids)}
        template = self._template_sources.get("default")
        files: dict[str, Mapping[str, Any]] = {
            "tokenizer_config.json": {
                "tokenizer_class": "PreTrainedTokenizerFast",
                **self._named_tokens,
                **({} if template is None else {"chat_template": template}),
            },
            "generation_config.json": ids,
            "config.json": {
                **ids,
                "architectures": ["LlamaForCausalLM"],
                "model_type": "llama",
                "max_position_embeddings": context_tokens,
                "vocab_size": self.vocab_size,
            },
        }
        folder.mkdir(parents=True)
        self._backend.save(str(folder / "tokenizer.json"))
        for name, content in files.items():
            (folder / name).write_text(json.dumps(content), encoding="utf-8")

    def encode(
        self,
        text: str,
        add_special_tokens: bool = True,
        *,
        max_tokens: int | None = None,
        keep_last: int | None = None,
        checkpoint: Checkpoint = _go_on,
        field: str = "prompt",
    ) -> list[int]:
        """Encode a prompt.

        Special tokens written out in the text become their ids. Encoding releases the interpreter's
        lock. Time and memory are proportional to `max_tokens` or `keep_last`.

        Args:
            add_special_tokens: add the model's special tokens around the text, such as BOS.
            max_tokens: raise `TooManyTokens` for a long text with more.
            keep_last: encode only the end of a long text, with at least this many ids.
            checkpoint: called before each slice of a long text; stops the work by raising.
            field: name of the text in errors.

        Returns:
            The ids; empty for an empty text without special tokens.

        Raises:
            InvalidRequest: the text contains a lone surrogate, or is too hard for one of the
                tokenizer's regular expressions.
            TooManyTokens: the text is long and has more tokens than `max_tokens`.
        """
        with _refusals(field):
            if len(text) > _LONG_CHARACTERS:
                if keep_last is not None:
                    return self._encode_tail(text, add_special_tokens, keep_last, checkpoint)
                if max_tokens is not None:
                    self._refuse_too_many([text], max_tokens, checkpoint)
            return self._encode(text, add_special_tokens)

    @panics_as_errors()
    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """Decode ids; skip those outside the vocabulary, replace invalid UTF-8 with U+FFFD."""
        return self._backend.decode(list(ids), skip_special_tokens=skip_special_tokens)

    def token_text(self, token_id: int) -> str:
        """Return the text that an id adds inside a text; empty for a part of a character."""
        known = self._token_texts.get(token_id)
        if known is None:
            # Keep the second one: the first token of a text can decode differently.
            decoding = self.start_decoding(skip_special_tokens=False)
            decoding.push((token_id,))
            text = decoding.push((token_id,))
            known = self._token_texts[token_id] = "" if _REPLACEMENT in text else text
        return known

    def start_decoding(
        self, skip_special_tokens: bool = True, shown: Collection[str] = ()
    ) -> Decoding:
        """Start the incremental decoding of one text.

        Text is returned as soon as no further id can change it, so a U+FFFD in it is part of the
        whole text. Joined, it equals `decode` of all ids, to the byte. The cost of a token does not
        grow with the length of the text.

        Args:
            shown: special tokens to include. Each set costs a table in memory.
        """
        key = (skip_special_tokens, self._special.intersection(shown) if shown else _NONE_SHOWN)
        if key not in self._decodings:
            with panics_as_errors():
                self._decodings[key] = choose_decoding(
                    self._backend, skip_special_tokens=key[0], shown=key[1]
                )
        return self._decodings[key]()

    def apply_chat_template(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        variables: Mapping[str, Any] | None = None,
        write_call: CallWriter = write_as_json,
        control_tokens: bool = False,
        max_tokens: int | None = None,
        keep_last: int | None = None,
        checkpoint: Checkpoint = _go_on,
        limit_s: float = RENDER_LIMIT_S,
        alone: AbstractContextManager[Any] = nullcontext(),  # noqa: B008 - it has no state
    ) -> list[int]:
        """Encode a conversation in the model's prompt format.

        It is written in the form that the template supports; see `ModelTemplates`. The template
        writes BOS itself if the model needs it, so none is added here.

        Args:
            messages: the conversation, oldest first; the package `conversation` defines its keys.
            add_generation_prompt: start the assistant's turn.
            continue_final_message: end the prompt with the last message's text, which the model
                continues.
            tools: JSON schemas of the functions that the model may call.
            variables: further names for the template, such as `enable_thinking`.
            write_call: writes a call into the text, for a template that renders none.
            control_tokens: let special tokens written out in messages, tools and variables act as
                control tokens.
            max_tokens: as for `encode`.
            limit_s: CPU time of the template.
            alone: held while the conversation is written, which holds the interpreter's lock.

        Raises:
            InvalidRequest: the model has no chat template, or it rejects the messages.
            TooManyTokens: as for `encode`.
        """
        if self.templates is None:
            raise InvalidRequest(
                "the model has no chat template; send a prompt, or name a tokenizer_repository "
                "that has one",
                param="messages",
            )
        conversation = RenderedConversation(
            self.templates,
            self._control_tokens,
            messages,
            tools,
            variables or {},
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
            control_tokens=control_tokens,
        )
        if max_tokens is not None and keep_last is None:
            self._refuse_hopeless(messages, max_tokens, checkpoint)
        with alone:
            checkpoint()
            prompt, control = conversation.render(write_call, checkpoint, limit_s)
        if control_tokens:
            parts = iter([prompt])
        else:
            parts = control.split(prompt) if keep_last is None else control.split_from_end(prompt)
        if keep_last is not None:
            return self._encode_last_parts(parts, keep_last, checkpoint)
        ids: list[int] = []
        for part in parts:
            checkpoint()
            ids += self.encode(
                part, False, max_tokens=max_tokens, checkpoint=checkpoint, field="messages"
            )
            if max_tokens is not None and len(ids) > max_tokens:
                raise TooManyTokens
        return ids

    def _encode_last_parts(
        self, parts: Iterator[str], count: int, checkpoint: Checkpoint
    ) -> list[int]:
        """Encode parts, given last first, until there are enough ids."""
        encoded: list[list[int]] = []
        for part in parts:
            checkpoint()
            encoded.append(
                self.encode(part, False, keep_last=count, checkpoint=checkpoint, field="messages")
            )
            count -= len(encoded[-1])
            if count <= 0:
                break
        return list(chain.from_iterable(reversed(encoded)))

    @panics_as_errors()
    def _encode(self, text: str, add_special_tokens: bool) -> list[int]:
        # `encode` would keep the interpreter's lock; `encode_batch` computes unused offsets.
        batch = self._backend.encode_batch_fast([text], add_special_tokens=add_special_tokens)
        ids: list[int] = batch[0].ids
        return ids

    def _encode_tail(
        self, text: str, add_special_tokens: bool, count: int, checkpoint: Checkpoint
    ) -> list[int]:
        wanted = counted = count + _TAIL_MARGIN_TOKENS
        while True:
            characters = self._tail_characters(text, counted, checkpoint)
            ids = self._encode(text[-characters:], add_special_tokens)
            if len(ids) >= wanted or characters >= len(text):
                return ids
            counted *= 2

    def _tail_characters(self, text: str, count: int, checkpoint: Checkpoint) -> int:
        """Return the length of a tail with the given number of tokens when encoded in slices."""
        found = 0
        for end in range(len(text), 0, -_LONG_CHARACTERS):
            checkpoint()
            found += self._slice_tokens(text[max(0, end - _LONG_CHARACTERS) : end])
            if found >= count:
                return len(text) - end + _LONG_CHARACTERS
        return len(text)

    def _refuse_too_many(
        self, texts: Iterable[str], max_tokens: int, checkpoint: Checkpoint
    ) -> None:
        """Raise TooManyTokens as soon as the tokens of the first slices exceed the limit."""
        count = 0
        for text in texts:
            for begin in range(0, len(text), _LONG_CHARACTERS):
                checkpoint()
                count += self._slice_tokens(text[begin : begin + _LONG_CHARACTERS])
                if count > max_tokens:
                    raise TooManyTokens

    def _refuse_hopeless(
        self, messages: Sequence[Mapping[str, Any]], max_tokens: int, checkpoint: Checkpoint
    ) -> None:
        """Raise TooManyTokens before a template runs, where texts that it shows are too long.

        The assistant's are not counted: a template may cut reasoning out of them.
        """
        texts = [
            text.strip()
            for each in messages
            if each["role"] != "assistant" and isinstance(text := each.get("content"), str)
        ]
        if sum(map(len, texts)) > _HOPELESS_CHARACTERS * max_tokens:
            with _refusals("messages"):
                self._refuse_too_many(texts, max_tokens, checkpoint)

    def _slice_tokens(self, text: str) -> int:
        return max(0, len(self._encode(text, add_special_tokens=False)) - _CUT_TOKENS)


@contextmanager
def _refusals(field: str) -> Iterator[None]:
    """Raise the errors of the tokenizer's library as those of a field.

    Raises:
        InvalidRequest: as for `TextTokenizer.encode`.
    """
    try:
        yield
    except (TypeError, ValueError) as error:
        raise InvalidRequest(
            f"{field} contains a lone surrogate, which is not valid Unicode; send whole characters",
            param=field,
        ) from error
    except LibraryPanic as panic:
        if _GIVEN_UP not in str(panic):
            raise
        raise InvalidRequest(
            f"{field} contains text on which the tokenizer's regular expression takes too "
            "long; change or shorten it.",
            param=field,
        ) from None


_HIDES_FUNCTIONS = (
    "the model's chat template does not render tools; leave them out, or describe them in a "
    "message."
)


class RenderedConversation:
    """A conversation prepared for a chat template.

    Args:
        controls: the special tokens, by template name.
        control_tokens: see `apply_chat_template`.
    """

    def __init__(
        self,
        templates: ModelTemplates,
        controls: Mapping[str, ControlTokens],
        turns: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None,
        variables: Mapping[str, Any],
        *,
        control_tokens: bool,
        **options: bool,
    ) -> None:
        self._templates = templates
        self._controls = controls
        self._turns = turns
        self._tools = tools
        self._variables = variables
        self._masks = not control_tokens
        self._options = options

    def render(
        self, write_call: CallWriter, checkpoint: Checkpoint, limit_s: float
    ) -> tuple[str, ControlTokens]:
        """Render the first form that the template accepts.

        Returns:
            The prompt with its special tokens masked, and the object that restores them.

        Raises:
            InvalidRequest: it accepts none.
        """
        refused: tuple[str, str] | None = None
        forms = self._templates.written(
            self._turns,
            self._tools,
            variables=self._variables,
            write_call=write_call,
            **self._options,
        )
        for written in forms:
            checkpoint()
            control = self._controls.get(written.template) or self._controls["default"]
            try:
                prompt = self._prompt(written, control, checkpoint, limit_s)
            except InvalidRequest as error:
                # The exception itself would keep its callers, and with them the conversation,
                # alive.
                is_misfit = isinstance(error, MisfitMessages)
                message = with_remedy(error.message) if is_misfit else error.message
                refused = refused or (message, error.param or "messages")
                continue
            if self._shows_functions(prompt, control):
                return prompt, control
        message, param = refused or (_HIDES_FUNCTIONS, "tools")
        raise InvalidRequest(message, param=param)

    def _prompt(
        self, written: Written, control: ControlTokens, checkpoint: Checkpoint, limit_s: float
    ) -> str:
        variables = self._variables
        if self._masks:
            messages = [dict(control.mask(each)) for each in _each(written.messages, checkpoint)]
            holding_tools = {
                name: value and [control.mask(tool) for tool in _each(value, checkpoint)]
                for name, value in written.variables.items()
            }
            variables = control.mask_value(variables)
            written = written._replace(messages=messages, variables=holding_tools)
        return self._templates.render(
            written, variables=variables, limit_s=limit_s, **self._options
        )

    def _shows_functions(self, prompt: str, control: ControlTokens) -> bool:
        names = [tool.get("function", tool).get("name", "") for tool in self._tools or ()]
        if self._masks:
            names = control.mask_value(names)
        return shows_all(prompt, names)


def shows_all(prompt: str, names: Iterable[str]) -> bool:
    """Return whether a prompt shows each name, as it is or as JSON writes it.

    A template shows functions in their order, so each search begins where the last one ended: from
    the beginning, a thousand names in a prompt of 8 MB took 3 s.
    """
    begin = 0
    escapes = False  # the way in which the last name was written is tried first
    for name in names:
        forms = dict.fromkeys(
            (json.dumps(name)[1:-1], name) if escapes else (name, json.dumps(name)[1:-1])
        )
        places = ((form, prompt.find(form, at)) for at in (begin, 0) for form in forms)
        form, found = next(((form, at) for form, at in places if at >= 0), ("", -1))
        if found < 0:
            return False
        begin, escapes = found, form != name
    return True


def _each(items: Iterable[Item], checkpoint: Checkpoint) -> Iterator[Item]:
    for item in items:
        checkpoint()
        yield item


def load_tokenizer(path: Path, *, trust_remote_code: bool = False) -> TextTokenizer:
    """Load the tokenizer of a model.

    Args:
        path: a folder with a `tokenizer.json`, with files to build one from, or with one `.gguf`
            file, in this order; or such a file, whose folder is searched in the same order.
        trust_remote_code: allow a tokenizer to run Python code.

    Raises:
        ArtifactError: no usable tokenizer was found; the message gives the file and the remedy.
    """
    for name in _BACKTRACES:
        os.environ.pop(name, None)
    try:
        with panics_as_errors():
            return _load(path, trust_remote_code)
    except LibraryPanic as panic:
        raise ArtifactError(
            f"the tokenizer in {path} cannot be used ({panic}); save it anew with the "
            "`tokenizers` library, or name another tokenizer_repository."
        ) from panic


def read_parts(path: Path, *, trust_remote_code: bool) -> tuple[Path, TokenizerParts]:
    """Read the tokenizer for `load_tokenizer`; also return its folder or ``.gguf`` file."""
    source = path if path.is_dir() else path.parent
    names = {
        file.relative_to(source).as_posix(): file.stat().st_size
        for file in source.glob("*")
        if file.is_file()
    }
    try:
        files = select_tokenizer(names, trust_remote_code=trust_remote_code)
    except ArtifactError as error:
        raise ArtifactError(f"the tokenizer in {source}: {error.message}") from error
    if files[0].endswith(GGUF_SUFFIX):
        source = source / files[0]
        return source, read_gguf_tokenizer(source)
    return source, read_tokenizer_folder(source, trust_remote_code=trust_remote_code)


def _load(path: Path, trust_remote_code: bool) -> TextTokenizer:
    source, parts = read_parts(path, trust_remote_code=trust_remote_code)
    try:
        return TextTokenizer(parts)
    except TemplateLimitError as error:
        raise ArtifactError(
            f"the chat template in {source} cannot be used: for one message of five characters, "
            f"{error}. Correct or remove it."
        ) from error
    except TemplateError as error:
        raise ArtifactError(
            f"the chat template in {source} is not valid Jinja ({error}); correct or remove it."
        ) from error


_REMEMBERED_WORDS = 1024


def encode_word(tokenizer: TextTokenizer, word: str) -> list[int]:
    """Return the ids of a word; none for invalid Unicode, which no text can contain."""
    try:
        return tokenizer.encode(word, add_special_tokens=False)
    except InvalidRequest:
        return []


def implies_word(tokenizer: TextTokenizer, ids: Sequence[int], word: str) -> bool:
    """Return True if every text that contains these ids contains the word."""
    if _REPLACEMENT in word:  # could come from bytes that an earlier token would complete
        return False
    # Pushed twice: the first token of a text can decode differently from the same token further on.
    # Never flushed: text that only the end makes certain is not certain.
    decoding = tokenizer.start_decoding()
    return all(word in decoding.push(ids) for _ in range(2))


class StopWordIds:
    """Stop words as single ids of one tokenizer; caches the most recent words.

    The engine gets a word's id as a hint, and may stop before the text is searched. The id must
    therefore imply the word after any other tokens. Words of several tokens have no id here: the
    engine would also match a list that starts in the prompt.
    """

    def __init__(self, tokenizer: TextTokenizer) -> None:
        self._tokenizer = tokenizer
        self.hint = lru_cache(_REMEMBERED_WORDS)(self._hint)
        self.special = lru_cache(_REMEMBERED_WORDS)(self._special)

    def _hint(self, word: str) -> int | None:
        ids = encode_word(self._tokenizer, word)
        return ids[0] if len(ids) == 1 and implies_word(self._tokenizer, ids, word) else None

    def _special(self, word: str) -> int | None:
        """Return the id of the special token spelled like the word; it never appears in a text."""
        ids = encode_word(self._tokenizer, word)
        return ids[0] if len(ids) == 1 and ids[0] in self._tokenizer.special_ids else None
