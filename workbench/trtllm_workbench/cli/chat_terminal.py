"""The prompt of `chat`: line editing, commands, and answers that Ctrl-C stops."""

from __future__ import annotations

import signal
import sys
import termios
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from prompt_toolkit import PromptSession
from prompt_toolkit.completion import WordCompleter
from prompt_toolkit.history import InMemoryHistory
from prompt_toolkit.key_binding import KeyBindings
from prompt_toolkit.key_binding.key_processor import KeyPressEvent
from prompt_toolkit.output import create_output
from prompt_toolkit.patch_stdout import patch_stdout

from trtllm_truss.errors import TrussError
from trtllm_truss.literals import one_line, printable
from trtllm_workbench.cli.conversation import AnswerSummary, Conversation, Write
from trtllm_workbench.cli.wrapping import answer_writer

_HELP = """\
  Enter sends; Alt-Enter, or \\ before Enter, begins a new line; arrow keys recall messages.
  Ctrl-C stops an answer, which stays in the conversation as far as it came; Ctrl-D ends.

  /system [TEXT]  show or set the system message; /system "" removes it
  /retry          replace the last answer
  /clear          begin a new conversation
  /stats          show tokens and times
  /save [FILE]    write the conversation to a new file, as JSON
  /help           show this
  /exit           end"""
_LOCAL_MODES = 3
"""Index of `c_lflag` in the result of `termios.tcgetattr`."""

_DIM, _PLAIN = "\x1b[2m", "\x1b[0m"


class ChatTerminal:
    """Reads messages and commands until Ctrl-D.

    Args:
        conversation: receives the messages.
    """

    def __init__(self, conversation: Conversation) -> None:
        self._conversation = conversation
        self._is_styled = sys.stdout.isatty()
        self._ended = False
        self._commands: dict[str, Callable[[str], None]] = {
            "/system": self._system,
            "/retry": lambda _: self._answer(conversation.retry),
            "/clear": self._clear,
            "/stats": lambda _: self._note(conversation.statistics()),
            "/save": self._save,
            "/help": lambda _: self._note(_HELP),
            "/exit": self._end,
        }
        self._session: PromptSession[str] = PromptSession(
            history=InMemoryHistory(),
            multiline=True,
            key_bindings=_bindings(),
            prompt_continuation="… ",
            completer=WordCompleter(list(self._commands), sentence=True),
            complete_while_typing=False,
            output=create_output(always_prefer_tty=True),
        )

    def run(self, greeting: str) -> None:
        """Converse until Ctrl-D or `/exit`.

        Args:
            greeting: the first line.
        """
        self._note(f"{greeting}\n/help lists the commands. Ctrl-C stops an answer, Ctrl-D ends.")
        while not self._ended:
            try:
                with patch_stdout(raw=True):  # a log line goes above the prompt
                    text = self._read().strip()
                if text:
                    self._handle(text)
            except KeyboardInterrupt:  # at the prompt, or just after an answer
                self._note("Ctrl-D ends.")
            except EOFError:
                return

    def _read(self) -> str:
        """Read a message.

        Raises:
            EOFError: Ctrl-D was pressed.
            KeyboardInterrupt: Ctrl-C was pressed. Until the prompt is set up it is a signal; an
                exception during asyncio's set-up would leave warnings on the terminal.
        """
        interrupts: list[int] = []

        def end_if_interrupted() -> None:
            if interrupts:
                self._session.app.exit(exception=KeyboardInterrupt)

        before = signal.signal(signal.SIGINT, lambda number, _: interrupts.append(number))
        try:
            text = self._session.prompt("> ", pre_run=end_if_interrupted)
        finally:
            signal.signal(signal.SIGINT, before)
        if interrupts:
            raise KeyboardInterrupt
        return text

    def _handle(self, text: str) -> None:
        name, _, argument = text.partition(" ")
        try:
            if not text.startswith("/"):
                self._answer(lambda write: self._conversation.ask(text, write))
            elif command := self._commands.get(name):
                command(argument.strip())
            else:
                self._note(f"{one_line(name)} is not a command; /help lists them.")
        except TrussError as error:
            turns = self._conversation.turns
            waits = bool(turns) and turns[-1].answer is None
            hint = "\n/retry asks again." if waits else ""
            self._note(f"error: {one_line(error.message)}{hint}")

    def _answer(self, request: Callable[[Write], AnswerSummary]) -> None:
        try:
            with _keys_kept(), answer_writer() as show:
                summary = request(show)
        except KeyboardInterrupt:
            self._note("\n[stopped]")
        except TrussError:
            print(flush=True)
            raise
        else:
            self._note(f"\n{one_line(str(summary))}")

    def _system(self, text: str) -> None:
        if text:
            self._conversation.system = "" if text == '""' else text
        self._note(f"system message: {self._conversation.system or 'none'}")

    def _clear(self, _: str) -> None:
        self._conversation.clear()
        self._note("a new conversation")

    def _save(self, name: str) -> None:
        file = Path(name or time.strftime("chat-%Y%m%d-%H%M%S.json"))
        with suppress(RuntimeError):  # ~USER without such a user
            file = file.expanduser()
        self._conversation.save(file)
        self._note(f"saved: {file}")

    def _end(self, _: str) -> None:
        self._ended = True

    def _note(self, text: str) -> None:
        text = printable(text)
        print(f"{_DIM}{text}{_PLAIN}" if self._is_styled else text, flush=True)


@contextmanager
def _keys_kept() -> Iterator[None]:
    """Keep keys typed during an answer for the next prompt, without echoing them into the answer.

    Ctrl-C remains a signal, and also leaves this mode.
    """
    terminal = sys.stdin.fileno() if sys.stdin.isatty() else None
    if terminal is None:
        yield
        return
    before = termios.tcgetattr(terminal)
    quiet = [*before]
    quiet[_LOCAL_MODES] &= ~(termios.ECHO | termios.ICANON)
    quiet[_LOCAL_MODES] |= termios.NOFLSH
    termios.tcsetattr(terminal, termios.TCSANOW, quiet)
    try:
        yield
    finally:
        termios.tcsetattr(terminal, termios.TCSANOW, before)


def _bindings() -> KeyBindings:
    bindings = KeyBindings()

    @bindings.add("enter")  # as Ctrl-J: Enter typed during an answer arrives this way
    def _send(event: KeyPressEvent) -> None:
        buffer = event.current_buffer
        if buffer.document.current_line_before_cursor.endswith("\\"):
            buffer.delete_before_cursor()
            buffer.insert_text("\n")
        else:
            buffer.validate_and_handle()

    @bindings.add("escape", "enter")
    @bindings.add("escape", "c-j")  # Alt-Enter, typed during an answer
    def _new_line(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text("\n")

    return bindings
