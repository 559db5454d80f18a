"""Keep special tokens in messages from acting as control tokens.

A user who writes `<|im_end|>` could otherwise end their turn and begin the system's. Each
occurrence is masked before the chat template runs. Afterwards the prompt is cut within each
restored token, so that the tokenizer encodes no part of it as a special token.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cache
from typing import Any

from trtllm_truss.errors import InvalidRequest

_PARSED = (
    r"(['\"])(?P<text>(?:(?!\1).)+)\1\s*(?:not\s+)?in\b|split\(\s*(['\"])(?P<cut>(?:(?!\3).)+)\3"
)
"""Text that a template looks for in a message, such as `'</think>' in content`."""


class ControlTokens:
    """The special tokens of one tokenizer and chat template.

    Args:
        contents: the text of each special token.
        template: the template's source. Special tokens that it searches for in messages stay
            unmasked in the assistant's: templates find reasoning by them.
    """

    def __init__(self, contents: Collection[str], template: str) -> None:
        self._contents = sorted(filter(None, contents), key=lambda text: (-len(text), text))
        parsed = {
            text for match in re.finditer(_PARSED, template) for text in match.group("text", "cut")
        }
        self._unparsed = [text for text in self._contents if text not in parsed]
        # Letters and digits pass through every filter of a template; the nonce is unguessable.
        nonce = secrets.token_hex(8)
        self._marks = {text: f"x{nonce}n{n}x" for n, text in enumerate(self._contents)}
        self._cut = cache(self._find_cut)
        self._mark_start = f"x{nonce}n"
        self._mark = re.compile(rf"{self._mark_start}(\d+)x")

    def mask(self, message: Mapping[str, Any]) -> Mapping[str, Any]:
        """Mask the special tokens in all texts of a message, or of a tool's description."""
        is_assistant = message.get("role") == "assistant"
        masked = self._masked(message, self._unparsed if is_assistant else self._contents)
        assert isinstance(masked, Mapping)
        return masked

    def split(self, prompt: str) -> Iterator[str]:
        """Restore masked tokens and cut the prompt within each of them.

        Yields:
            The prompt in parts. Encoded one by one, they hold only the special tokens that the
            template wrote.

        Raises:
            InvalidRequest: a message holds a special token of one character, which cannot be cut.
        """
        begin, end = "", 0
        for match in self._mark.finditer(prompt):
            head, tail = self._halves(match)
            yield begin + prompt[end : match.start()] + head
            begin, end = tail, match.end()
        yield begin + prompt[end:]

    def split_from_end(self, prompt: str) -> Iterator[str]:
        """Yield the parts of `split`, the last one first; what is not asked for costs nothing."""
        begin, end, last = len(prompt), len(prompt), ""
        while (begin := prompt.rfind(self._mark_start, 0, begin)) >= 0:
            match = self._mark.match(prompt, begin, end)
            if match is not None:
                head, tail = self._halves(match)
                yield tail + prompt[match.end() : end] + last
                end, last = begin, head
        yield prompt[:end] + last

    def _halves(self, mark: re.Match[str]) -> tuple[str, str]:
        token = self._contents[int(mark.group(1))]
        cut = self._cut(token)
        if cut is None:
            raise InvalidRequest(
                f"messages hold the control token {token!r}, which cannot be sent as text; "
                "remove it, or set serving.control_tokens_in_messages.",
                param="messages",
            )
        return token[:cut], token[cut:]

    def _find_cut(self, token: str) -> int | None:
        """Find a cut of a token such that neither half holds a special token."""
        for cut in range(1, len(token)):
            if not any(text in half for half in (token[:cut], token[cut:]) for text in self._marks):
                return cut
        return None

    def _masked(self, value: Any, tokens: Sequence[str]) -> Any:
        if isinstance(value, str):
            # Many short calls: one regular expression over megabytes would hold up all threads.
            for token in tokens:
                if token in value:
                    value = value.replace(token, self._marks[token])
            return value
        if isinstance(value, Mapping):
            return {
                self._masked(name, tokens): self._masked(item, tokens)
                for name, item in value.items()
            }
        if isinstance(value, list | tuple):
            return [self._masked(item, tokens) for item in value]
        return value
