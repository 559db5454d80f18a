"""Other people's programs, set up as docs/clients.md says: a turn with a tool, and a second one."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.clients import page
from tests.clients.scripted import AGAIN, KNOWN, QUESTION, READ, RESULT

LIMIT_S = 240
AIDER = Path(sys.prefix) / "aider/bin/aider"
Run = Callable[..., str]

_KEPT = ("PATH", "LANG", "TMPDIR")
_QUIET = {
    "DISABLE_AUTOUPDATER": "1",
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "OPENCODE_DISABLE_AUTOUPDATE": "1",
    "OPENCODE_DISABLE_LSP_DOWNLOAD": "1",
    "OPENCODE_DISABLE_MODELS_FETCH": "1",
}
"""Without these, programs ask the internet for updates, models and prices."""


@pytest.fixture
def run(scripted: str, tmp_path: Path) -> Iterator[Run]:
    """Run a program with the variables and the file of a section, in its own home and folder."""
    home, folder = tmp_path / "home", tmp_path / "work"
    home.mkdir()
    folder.mkdir()

    def run(title: str, program: Path, *arguments: str, file: str = "") -> str:
        if not program.exists():
            pytest.skip(f"{program.name} is not installed.")
        variables = "\n".join(page.blocks(title, "")).replace(page.ADDRESS, scripted)
        if file:
            (settings,) = page.blocks(title, file.rpartition(".")[2])
            path = Path(file.replace("~", str(home)))
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text(settings.replace(page.ADDRESS, scripted))
        environment = {
            **{name: os.environ[name] for name in _KEPT if name in os.environ},
            **{"HOME": str(home), "SHELL": "/bin/bash", **_QUIET},
            **dict(re.findall(r"^\$ export (\w+)=(\S+)$", variables, re.MULTILINE)),
        }
        process = subprocess.Popen(
            [program, *arguments],
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        try:
            said, _ = process.communicate(timeout=LIMIT_S)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        assert process.returncode == 0, said
        return said

    run.address = scripted  # type: ignore[attr-defined]
    yield run
    for pid in started_in(home):  # daemons, in sessions of their own: Cline's hub
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def started_in(home: Path) -> Iterator[int]:
    """Yield the processes with this home."""
    variable = f"HOME={home}".encode()
    for file in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):  # another user's, or it has exited
            if variable in file.read_bytes().split(b"\0"):
                yield int(file.parent.name)


def test_daemons_are_found_by_their_home(tmp_path: Path) -> None:
    """A program leaves no process behind."""
    daemon = subprocess.Popen(
        ["sleep", "60"], env={"PATH": os.environ["PATH"], "HOME": str(tmp_path)}
    )
    try:
        assert [*started_in(tmp_path)] == [daemon.pid]
    finally:
        daemon.kill()
        daemon.wait()
    assert [*started_in(tmp_path)] == []


def test_codex(run: Run) -> None:
    program, file = page.NODE_MODULES / ".bin/codex", "~/.codex/config.toml"
    # A container has no sandbox in which Codex would run the command.
    free = ("--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox")
    assert READ in run("Codex", program, "exec", *free, QUESTION, file=file)
    assert KNOWN in run("Codex", program, "exec", "resume", "--last", *free, AGAIN, file=file)


def test_claude_code(run: Run) -> None:
    program = page.NODE_MODULES / "@anthropic-ai/claude-code-linux-x64/claude"
    assert READ in run("Claude Code", program, "-p", QUESTION, "--allowedTools", "Bash")
    assert KNOWN in run("Claude Code", program, "-p", "--continue", AGAIN)


def test_opencode(run: Run) -> None:
    program = page.NODE_MODULES / "opencode-linux-x64/bin/opencode"
    assert READ in run("opencode", program, "run", QUESTION, file="opencode.json")
    assert KNOWN in run("opencode", program, "run", "--continue", AGAIN, file="opencode.json")


def test_qwen_code(run: Run) -> None:
    program = page.NODE_MODULES / ".bin/qwen"
    options = ("--auth-type", "openai", "--yolo", "-p")
    file = "~/.qwen/settings.json"
    assert READ in run("Qwen Code", program, *options, QUESTION, file=file)
    assert KNOWN in run("Qwen Code", program, "--continue", *options, AGAIN, file=file)


def test_copilot(run: Run) -> None:
    program = page.NODE_MODULES / ".bin/copilot"
    options = ("--allow-all-tools", "--no-color", "-p")
    assert READ in run("GitHub Copilot CLI", program, *options, QUESTION)
    assert KNOWN in run("GitHub Copilot CLI", program, "--continue", *options, AGAIN)


def test_cline(run: Run) -> None:
    """Resume no session: that takes a number, which only JSON output has."""
    program = page.NODE_MODULES / ".bin/cline"
    address = run.address  # type: ignore[attr-defined]
    (line,) = [each for each in page.blocks("Cline", "")[0].splitlines() if "auth" in each]
    arguments = line.replace(page.ADDRESS, address).split()[2:]
    run("Cline", program, *arguments)
    assert READ in run("Cline", program, "--auto-approve", "true", QUESTION)


def test_continue(run: Run) -> None:
    program, file = page.NODE_MODULES / ".bin/cn", "~/.continue/config.yaml"
    assert READ in run("Continue", program, "--auto", "-p", QUESTION, file=file)
    assert KNOWN in run("Continue", program, "--auto", "--resume", "-p", AGAIN, file=file)


def test_pi(run: Run) -> None:
    program, file = page.NODE_MODULES / ".bin/pi", "~/.pi/agent/models.json"
    options = ("--provider", "truss", "--model", "any", "--offline", "-p")
    assert READ in run("pi", program, *options, QUESTION, file=file)
    assert KNOWN in run("pi", program, *options, "--continue", AGAIN, file=file)


def test_aider(run: Run, tmp_path: Path) -> None:
    """Its tool is a file that the answer contains."""
    options = ("--no-git", "--yes-always", "--no-check-update", "--no-show-release-notes")
    options += ("--analytics-disable", "--no-detect-urls", "--restore-chat-history", "--message")
    run("aider", AIDER, *options, QUESTION)
    assert (tmp_path / "work/answer.txt").read_text() == f"{RESULT}\n"
    assert KNOWN in run("aider", AIDER, *options, AGAIN)
