"""A conversation with a model over the predict API."""

from __future__ import annotations

import json
import os
import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from trtllm_truss.errors import InvalidRequest
from trtllm_workbench.cli.answers import AnswerSummary, stream_answer

Write = Callable[[str], object]


@dataclass(slots=True)
class Turn:
    """A question and its answer; None until some of the answer has arrived."""

    question: str
    answer: str | None = None


class Conversation:
    """The messages so far; each answer continues them.

    Args:
        url: a local server or the predict URL of a deployed Truss.
        parameters: fields of the predict body beside `messages`.
        system: the system message; empty for none.

    Attributes:
        system: the system message.
        turns: oldest first.
        summaries: of all whole answers, those that `retry` replaced included.
    """

    def __init__(self, url: str, parameters: Mapping[str, object], system: str = "") -> None:
        self._url = url
        self._parameters = dict(parameters)
        self.system = system
        self.turns: list[Turn] = []
        self.summaries: list[AnswerSummary] = []

    @property
    def messages(self) -> list[dict[str, str]]:
        """The conversation as predict's and OpenAI's field `messages`."""
        messages = [{"role": "system", "content": self.system}] if self.system else []
        for turn in self.turns:
            messages.append({"role": "user", "content": turn.question})
            if turn.answer is not None:
                messages.append({"role": "assistant", "content": turn.answer})
        return messages

    def ask(self, question: str, write: Write) -> AnswerSummary:
        """Send a message and pass the answer to `write` as it arrives.

        A question without an answer stays for `retry`; the next question replaces it. After Ctrl-C
        the text so far is the answer.

        Raises:
            TrussError: the server is unreachable, refused the request or failed.
        """
        if self.turns and self.turns[-1].answer is None:
            self.turns.pop()
        self.turns.append(Turn(question))
        return self._answer(write)

    def retry(self, write: Write) -> AnswerSummary:
        """Replace the last answer.

        Raises:
            InvalidRequest: there is no question yet.
            TrussError: as from `ask`.
        """
        if not self.turns:
            raise InvalidRequest("there is no message to retry; send one first.")
        return self._answer(write)

    def clear(self) -> None:
        """Forget all turns; keep the system message and the statistics."""
        self.turns.clear()

    def save(self, file: Path) -> None:
        """Write `{"messages": […]}` to a new file that only its owner can read.

        Raises:
            InvalidRequest: the file exists or cannot be written.
        """
        text = json.dumps({"messages": self.messages}, ensure_ascii=False, indent=2) + "\n"
        try:
            number = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(number, "w", encoding="utf-8", errors="replace") as opened:
                opened.write(text)
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            raise InvalidRequest(f"{file} cannot be written ({reason}); name a new file.") from None

    def statistics(self) -> str:
        """Describe all whole answers in one line."""
        if not self.summaries:
            return "no answer yet"
        last = self.summaries[-1]
        tokens = sum(summary.tokens for summary in self.summaries)
        first_s = statistics.median(summary.first_s for summary in self.summaries)
        rate = statistics.median(summary.tokens_per_s for summary in self.summaries)
        return (
            f"{len(self.summaries)} answers, {tokens} tokens; medians: first token after "
            f"{first_s:.2f} s, {rate:.0f} tokens/s; context of the last answer: "
            f"{last.prompt_tokens} + {last.tokens} tokens"
        )

    def _answer(self, write: Write) -> AnswerSummary:
        turn = self.turns[-1]
        turn.answer = None
        body = {"messages": self.messages, **self._parameters}

        def take(text: str) -> None:
            turn.answer = (turn.answer or "") + text
            write(text)

        try:
            summary = stream_answer(self._url, body, take)
        except KeyboardInterrupt:
            raise
        except BaseException:
            turn.answer = None  # a part that nobody asked to end here
            raise
        turn.answer = turn.answer or ""
        self.summaries.append(summary)
        return summary
