"""Chat templates: Jinja programs, shipped with a model, that turn messages into its prompt.

The `transformers` library defines what a template may use
(https://huggingface.co/docs/transformers/chat_templating_writing): the names given to `render`, the
functions `raise_exception` and `strftime_now`, a `tojson` that leaves non-ASCII text alone, loop
controls, and `{% generation %}` blocks, which mark the assistant's words for training and render
their content here. Templates are downloaded, so they run in a sandbox (`text/sandbox.py`).

Special tokens in messages must not act as control tokens: a user who writes `<|im_end|>` could
otherwise end their turn and start the system's. Each occurrence is masked before the template runs.
Afterwards the prompt is cut within each restored token, so the tokenizer encodes no part of it as a
special token.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cache
from os.path import commonprefix
from typing import Any

from jinja2 import TemplateError

from trtllm_truss.errors import InvalidRequest
from trtllm_truss.text.sandbox import SandboxedTemplate
from trtllm_truss.text.template_limits import SHORT_RENDER_LIMIT_S, TemplateLimitError

_PARSED = (
    r"(['\"])(?P<text>(?:(?!\1).)+)\1\s*(?:not\s+)?in\b|split\(\s*(['\"])(?P<cut>(?:(?!\3).)+)\3"
)
"""Text that a template looks for in a message, such as `'</think>' in content`."""


_MARKUP = re.compile(r"[<\[].{2,}", re.DOTALL)
"""Parsed text that acts as a control token: in a user's text, a template would split there too."""

_SLICE_CHARACTERS = 1 << 15
"""Text per search: a search holds the interpreter's lock, and takes up to 3 ms."""

_LEVELS = 32
_NEVER = r"(?!)"


class MisfitMessages(InvalidRequest):
    """The reason why a template rejects messages, without a remedy."""


class ControlTokens:
    """The special tokens of one tokenizer and chat template.

    Args:
        template: the template's source. Special tokens that it searches for in messages stay
            unmasked in the assistant's messages, because templates find reasoning by them.
    """

    def __init__(self, contents: Collection[str], template: str) -> None:
        found = [*re.finditer(_PARSED, template)]
        parsed = {text for match in found for text in match.group("text", "cut")}
        cuts = {match["cut"] for match in found if match["cut"] and _MARKUP.fullmatch(match["cut"])}
        self._contents = sorted({*filter(None, contents), *cuts})
        self._longest = max(map(len, self._contents), default=1)
        self._any = _one_of(self._contents)
        unparsed = [text for text in self._contents if text not in parsed]
        self._unparsed = _one_of(unparsed) if len(unparsed) < len(self._contents) else self._any
        # Letters and digits pass through all template filters unchanged; the nonce is unguessable.
        nonce = secrets.token_hex(8)
        self._marks = {text: f"x{nonce}n{n}x" for n, text in enumerate(self._contents)}
        self._cut = cache(self._find_cut)
        self._mark_start = f"x{nonce}n"
        self._mark = re.compile(rf"{self._mark_start}(\d+)x")

    def mask(self, message: Mapping[str, Any]) -> Mapping[str, Any]:
        """Mask the special tokens in all texts of a message or tool description."""
        is_assistant = message.get("role") == "assistant"
        masked = self.mask_value(message, self._unparsed if is_assistant else None)
        assert isinstance(masked, Mapping)
        return masked

    def split(self, prompt: str) -> Iterator[str]:
        """Restore masked tokens and cut the prompt within each of them.

        Yields:
            The prompt in parts. When encoded one by one, they contain only the special tokens that
                the
            template wrote.

        Raises:
            InvalidRequest: a message contains a special token of one character, which cannot be
                cut.
        """
        begin, end = "", 0
        for match in self._mark.finditer(prompt):
            head, tail = self._halves(match)
            yield begin + prompt[end : match.start()] + head
            begin, end = tail, match.end()
        yield begin + prompt[end:]

    def split_from_end(self, prompt: str) -> Iterator[str]:
        """Yield the parts of `split`, last one first; parts that are not consumed cost nothing."""
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
        """Find a cut of a token such that neither half contains a special token."""
        for cut in range(1, len(token)):
            if not any(self._any.search(half) for half in (token[:cut], token[cut:])):
                return cut
        return None

    def mask_value(self, value: Any, tokens: re.Pattern[str] | None = None) -> Any:
        """Mask the special tokens in all texts of a JSON value, including names.

        Args:
            value: the value, which stays unchanged.
            tokens: the tokens to mask; by default all.
        """
        tokens = tokens or self._any
        if isinstance(value, str):
            return self._masked(value, tokens)
        if isinstance(value, Mapping):
            return {
                self.mask_value(name, tokens): self.mask_value(item, tokens)
                for name, item in value.items()
            }
        if isinstance(value, list | tuple):
            return [self.mask_value(item, tokens) for item in value]
        return value

    def _masked(self, text: str, tokens: re.Pattern[str]) -> str:
        masked: list[str] = []
        begin = 0
        while begin < len(text):
            # A token may start in this slice and end in the next.
            window = text[begin : begin + _SLICE_CHARACTERS + self._longest - 1]
            parts, end = tokens.split(window), len(window)  # text, token, text …
            while len(parts) > 1 and end - len(parts[-1]) - len(parts[-2]) >= _SLICE_CHARACTERS:
                end -= len(parts.pop()) + len(parts.pop())
            last = end - len(parts[-1])
            end = max(last, min(end, _SLICE_CHARACTERS))
            parts[-1] = parts[-1][: end - last]
            parts[1::2] = map(self._marks.__getitem__, parts[1::2])
            masked.append("".join(parts))  # many parts in one call would hold the lock
            begin += end
        return "".join(masked)


def _one_of(texts: Collection[str]) -> re.Pattern[str]:
    return re.compile(f"({_alternatives(texts, _LEVELS) if texts else _NEVER})")


def _alternatives(texts: Collection[str], levels: int) -> str:
    """Return an expression for the longest of the texts that starts at a place.

    Texts share common prefixes, so the cost of a search does not grow with their number.

    Args:
        texts: distinct, and none of them empty.
        levels: nesting of shared prefixes, which Python's compiler limits.
    """
    if not levels:
        return f"(?:{'|'.join(map(re.escape, sorted(texts, key=len, reverse=True)))})"
    groups: dict[str, list[str]] = {}
    for text in texts:
        groups.setdefault(text[0], []).append(text)
    branches = []
    for group in groups.values():
        shared = commonprefix(group)  # noqa: RUF071 - of characters, not of folders
        rests = [text[len(shared) :] for text in group if len(text) > len(shared)]
        rest = _alternatives(rests, levels - 1) if rests else ""
        may_end = "?" if rests and len(rests) < len(group) else ""
        branches.append(re.escape(shared) + rest + may_end)
    return f"(?:{'|'.join(branches)})"


_END_MARK = "\ue000end of the last message\ue000 "
"""Private-use characters, which no message contains.

A template that trims removes the last space.
"""


_REASON_CHARACTERS = 1024
"""Maximum length of a template's own message, which can quote a whole conversation."""


class ChatTemplate:
    """A compiled chat template.

    Args:
        source: the template's text.

    Raises:
        jinja2.TemplateSyntaxError: the source is invalid.
    """

    def __init__(self, source: str) -> None:
        self._template = SandboxedTemplate(source)

    def try_out(self, variables: Mapping[str, Any]) -> None:
        """Render a greeting, whether or not the template accepts it.

        Raises:
            TemplateLimitError: even the greeting exceeds a limit.
        """
        greeting = {
            "messages": [{"role": "user", "content": "Hello"}],
            "tools": None,
            "add_generation_prompt": True,
        }
        try:
            self._template.render({**variables, **greeting}, SHORT_RENDER_LIMIT_S)
        except TemplateLimitError:
            raise
        except (RecursionError, MemoryError) as error:
            raise TemplateLimitError(f"it ends with {type(error).__name__}") from None
        except Exception:  # noqa: BLE001 - it may want another conversation
            return

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        variables: Mapping[str, Any],
        limit_s: float = SHORT_RENDER_LIMIT_S,
    ) -> str:
        """Render the prompt, with special tokens written out.

        Args:
            messages: the conversation, oldest first, each with `role` and `content`.
            variables: all other names for the template.
            limit_s: CPU time.

        Raises:
            MisfitMessages: the template rejects the messages, fails on them, or exceeds a limit.
        """
        try:
            return self._template.render({**variables, "messages": messages}, limit_s)
        except TemplateError as error:
            reason = (error.message or type(error).__name__)[:_REASON_CHARACTERS]
        except Exception as error:  # noqa: BLE001 - a template is a program of a stranger
            # The message can quote the conversation, so only the error's type is reported.
            reason = type(error).__name__
        raise MisfitMessages(
            f"messages do not fit the model's chat template: {reason}", param="messages"
        )

    def render_open(
        self,
        messages: Sequence[Mapping[str, Any]],
        variables: Mapping[str, Any],
        limit_s: float = SHORT_RENDER_LIMIT_S,
    ) -> str:
        """Render the prompt up to the end of the last message's text, for the model to continue.

        A mark locates the end of that text. A template that trims messages also trims the mark's
        space, and would have trimmed trailing space of the text.

        Args:
            messages: as for `render`; the last one contains a text, or parts that end with one.

        Raises:
            InvalidRequest: the last message has no text, the template does not render it unchanged,
                or `render` fails.
        """
        *before, last = messages
        marked = _with_mark(last.get("content"))
        if marked is None:
            raise InvalidRequest(
                "the last of messages has no text to continue; add one, or set "
                "continue_final_message to false.",
                param="messages",
            )
        prompt = self.render([*before, {**last, "content": marked}], variables, limit_s)
        end = prompt.rfind(_END_MARK.strip())
        if end < 0:
            raise InvalidRequest(
                "the model's chat template omits or changes the last of messages, so it cannot be "
                "continued; set continue_final_message to false.",
                param="messages",
            )
        opened = prompt[:end]
        return opened if prompt.startswith(_END_MARK, end) else opened.rstrip()


def _with_mark(content: Any) -> Any:
    """Append the mark to a content; return None if it does not end with text."""
    if isinstance(content, str):
        return content + _END_MARK if content.strip() else None
    *before, last = content or [{}]
    marked = _with_mark(last.get("text"))
    return None if marked is None else [*before, {**last, "text": marked}]
