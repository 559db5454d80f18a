"""The tokenizer of the model being served."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jinja2 import TemplateError

from trtllm_truss.errors import ArtifactError, InvalidRequest
from trtllm_truss.text.chat_template import ChatTemplate
from trtllm_truss.text.decoding import choose_decoding
from trtllm_truss.text.gguf_tokenizer import read_gguf_tokenizer
from trtllm_truss.text.tokenizer_files import read_tokenizer_folder
from trtllm_truss.text.tokenizer_parts import TokenizerParts


class TextTokenizer:
    """Text to ids and back. Immutable, and safe to share between threads.

    Attributes:
        eos_ids: every id that ends a text, the tokenizer's own first; may be empty.
        bos_id: the id that begins a text, if there is one.
        pad_id: the id that fills up a batch, if there is one.
        vocab_size: the number of tokens, added ones included.
        special_ids: ids that never show in decoded text.
        start_decoding: begins the incremental decoding of one text; see
            `detokenizer.IncrementalDetokenizer`.
    """

    def __init__(self, parts: TokenizerParts) -> None:
        self._backend = parts.backend
        self._named_tokens = parts.named_tokens
        self._chat_templates = {
            name: ChatTemplate(source) for name, source in parts.chat_templates.items()
        }
        self.eos_ids = parts.eos_ids
        self.bos_id = parts.bos_id
        self.pad_id = parts.pad_id
        self.vocab_size = self._backend.get_vocab_size(with_added_tokens=True)
        added = self._backend.get_added_tokens_decoder()
        self.special_ids = frozenset(id_ for id_, token in added.items() if token.special)
        self.start_decoding = choose_decoding(self._backend)

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Turn a prompt into ids.

        Special tokens that are written out in the text become their ids.

        Args:
            text: the prompt.
            add_special_tokens: whether to add what the model expects around a text, such as BOS.

        Returns:
            The ids; empty for an empty text without special tokens.

        Raises:
            InvalidRequest: the text holds half of a surrogate pair.
        """
        return self._encode(text, add_special_tokens, param="prompt")

    def decode(self, ids: Sequence[int]) -> str:
        """Turn ids into text, as the tokenizer's own decoder does.

        Args:
            ids: any ids from 0 on; special ones and those outside the vocabulary are skipped.

        Returns:
            The text; bytes that are not UTF-8 show as U+FFFD.
        """
        return self._backend.decode(list(ids), skip_special_tokens=True)

    def apply_chat_template(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        **variables: Any,
    ) -> list[int]:
        """Turn a conversation into the ids of the prompt that the model was trained on.

        The template writes BOS itself where the model wants it, so none is added here.

        Args:
            messages: the conversation, oldest first, each with `role` and `content`.
            add_generation_prompt: whether to begin the assistant's answer.
            tools: JSON schemas of the functions that the model may call.
            **variables: further names for the template, such as `enable_thinking`.

        Returns:
            The ids.

        Raises:
            InvalidRequest: the model has no chat template, or it refuses the messages.
        """
        name = "tool_use" if tools and "tool_use" in self._chat_templates else "default"
        if name not in self._chat_templates:
            raise InvalidRequest(
                "the model has no chat template; send a prompt, or name a tokenizer_repository "
                "that has one",
                param="messages",
            )
        context = {
            **self._named_tokens,
            **variables,
            "tools": tools,
            "add_generation_prompt": add_generation_prompt,
        }
        prompt = self._chat_templates[name].render(messages, context)
        return self._encode(prompt, add_special_tokens=False, param="messages")

    def _encode(self, text: str, add_special_tokens: bool, param: str) -> list[int]:
        try:
            return self._backend.encode(text, add_special_tokens=add_special_tokens).ids
        except (TypeError, ValueError) as error:
            raise InvalidRequest(
                f"{param} holds half of a UTF-16 surrogate pair, which is not text; send whole "
                "characters",
                param=param,
            ) from error


def load_tokenizer(path: Path) -> TextTokenizer:
    """Load the tokenizer of a model.

    Args:
        path: a folder with a `tokenizer.json`, or with one `.gguf` file, or such a file. A
            `tokenizer.json` wins over the file's own description.

    Returns:
        The tokenizer.

    Raises:
        ArtifactError: nothing usable is there; the message names the file and the remedy.
    """
    folder = path if path.is_dir() else path.parent
    if (folder / "tokenizer.json").exists():
        source, parts = folder, read_tokenizer_folder(folder)
    else:
        source = _find_gguf(path)
        parts = read_gguf_tokenizer(source)
    try:
        return TextTokenizer(parts)
    except TemplateError as error:
        raise ArtifactError(
            f"the chat template in {source} is not valid Jinja ({error}); correct or remove it."
        ) from error


def _find_gguf(path: Path) -> Path:
    if path.suffix == ".gguf":
        return path
    files = sorted(path.glob("*.gguf"))
    if len(files) != 1:
        found = f"{len(files)} .gguf files" if files else "neither a .gguf file"
        raise ArtifactError(
            f"{path} holds {found} and no tokenizer.json; name a tokenizer_repository that holds "
            "one (`AutoTokenizer.from_pretrained(…).save_pretrained(…)` of transformers writes it)."
        )
    return files[0]
