"""The console's page in a real browser, before a server with the fake engine."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.fakes.triton import FAKE_ENGINE, config_for, write_engine
from tests.support.paths import ROOT
from tests.support.smollm2 import smollm2_tokenizer
from tests.support.truss_process import Served, free_port
from tests.support.waiting import settles

SCREENSHOTS = ROOT / "docs/screenshots"
QUESTION = "What is machine learning?"
HOSTILE = (
    "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>"
    "</div></ol><style>*{display:none}</style>&lt;b&gt; ![x](javascript:alert(1)) ```\n"
    "**bold _broken [link](http://evil.example  \u202eright-to-left override\u202c "
    "שלום עולם مرحبا\n"
)
LONG_LINE = "abcdefgh" * 50
PROSE = (
    "Machine learning finds rules in examples. A program that learns gets no list of steps; it "
    "gets many pairs of a question and a good answer, and adjusts its numbers until its own "
    "answers come close.\n\nThree kinds are common:\n\n1. supervised: each example has its "
    "answer;\n2. unsupervised: the program looks for groups by itself;\n3. reinforcement: it acts, "
    "and a reward tells how well.\n\n"
)
ANSWER = f"{PROSE * 2}{HOSTILE}{LONG_LINE}\n{PROSE * 12}"
PHONE = (360, 740)


@dataclass
class Console:
    """A page, the server behind it, and what the browser may have to show."""

    page: object
    server: Served
    screenshot: Callable[[str], None]
    phases: list[str]
    loads: Path


@pytest.fixture(scope="module")
def page(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Console]:
    """The page of a server that the tests may harm, opened while the server started."""
    pytest.importorskip("selenium", reason="selenium is not installed (make setup)")
    from tests.support.browser import chromium, open_browser

    installed = chromium()
    if installed is None:
        pytest.skip(
            "Chromium and chromedriver are not installed; on Debian: "
            "apt-get install chromium chromium-driver"
        )
    folder = tmp_path_factory.mktemp("page")
    tokens = smollm2_tokenizer().encode(ANSWER, False)
    loads = folder / "loads"
    engine = write_engine(folder / "engine", step_ms=8, load_after=loads, tokens=tokens)
    metadata = {
        "serving": {"restart_limit": 50, "restart_backoff_s": 0.1},
        "runtime": {
            "max_tokens_in_paged_kv_cache": 16384,
            "batch_scheduler_policy": "guaranteed_no_evict",  # so that requests reserve it
        },
    }
    with open_browser(*installed, folder / "profile") as browser:

        def screenshot(name: str) -> None:
            if request.config.getoption("--screenshots"):
                browser.screenshot(SCREENSHOTS / f"{name}.png")

        port = free_port()
        served = Served(config_for(engine, **metadata), FAKE_ENGINE, ["--console", str(port)])
        try:
            assert settles(lambda: "console: " in served.log), served.log
            browser.open(f"http://localhost:{port}/")
            browser.until(lambda: "triton: …" in browser.text("phases"), "the phases")
            phases = browser.text("phases")
            loads.touch()
            served.wait_until_ready()
            browser.until(lambda: browser.text("state") == "ready")
            yield Console(browser, served, screenshot, phases, loads)
        finally:
            if served.process.poll() is None:
                served.end()


@pytest.fixture(autouse=True)
def clean(page: Console) -> Iterator[None]:
    """Begin with an empty conversation; fail on what the browser complains about."""
    yield
    browser = page.page
    if browser.run("return document.getElementById('stop').disabled") is False:
        browser["stop"].click()
        browser.until(browser.is_idle)
    if browser["clear"].is_enabled():
        browser["clear"].click()
    browser.run("for (const each of document.querySelectorAll('details')) each.open = false")
    for name, value in (("max_tokens", "1000"), ("seed", ""), ("system", "")):
        browser.set(name, value)


def test_the_start_is_shown(page: Console) -> None:
    assert "engine: tensorrtllm, context of 2048 tokens" in page.phases
    assert "triton: …" in page.phases
    assert page.page.run("return document.title") == "smollm2-135m-cpu – console"


def test_a_conversation_streams_and_stop_stops_the_engine(page: Console) -> None:
    browser, server = page.page, page.server
    cancelled = len(server.cancelled())
    browser.set("max_tokens", "1500")
    browser.ask(QUESTION)
    browser.until(lambda: len("".join(browser.answers())) > 60)
    assert not browser.is_idle()
    first = browser.answers()[-1]
    browser.until(lambda: len(browser.answers()[-1]) > len(first))
    assert browser.answers()[-1].startswith(first)
    browser.until(lambda: browser.text("running") == "1")
    browser.until(lambda: browser.text("tokens-per-s") not in "–0")
    browser.until(lambda: "–" not in browser.text("gap"))
    page.screenshot("answering")
    browser["stop"].click()
    browser.until(browser.is_idle)
    assert settles(lambda: len(server.cancelled()) > cancelled)
    assert server.cancelled()[-1] < 1500
    assert browser.notes() == ["stopped"]
    assert browser.run("return document.activeElement.id") == "message"
    browser.until(lambda: "cancelled" in browser.text("requests"))


def test_parameters_retry_and_the_rest_of_the_conversation(page: Console) -> None:
    browser = page.page
    browser.set("max_tokens", "5")
    browser.set("system", "Repeat after me.")
    browser.ask("one two")
    browser.until(browser.is_idle)
    (note,) = browser.notes()
    assert "+ 5 tokens, ended by length; first token after" in note
    answer = browser.answers()
    assert PROSE.startswith(answer[0])
    browser["retry"].click()
    browser.until(browser.is_idle)
    assert browser.answers() == answer  # one answer, made anew
    assert browser.text("announcement") == f"{answer[0]} {browser.notes()[0]}"
    browser.ask("three")
    browser.until(lambda: len(browser.notes()) == 2 and browser.is_idle())
    prompts = [int(note.split(" ")[0]) for note in browser.notes()]
    assert prompts[1] > prompts[0]
    browser.set("max_tokens", "0")
    browser.ask("four")  # refused in the page
    assert len(browser.answers()) == 2
    assert browser["parameters"].get_property("open")


def test_the_request_as_programs(page: Console, tmp_path: Path) -> None:
    browser, server = page.page, page.server
    browser.set("max_tokens", "12")
    browser.set("message", "It's \"quoted\" \\ $HOME `ls` é\u2028\n'''")
    browser["request"].find_element("tag name", "summary").click()
    browser["send"].click()
    browser.until(browser.is_idle)
    answer = browser.answers()[-1]
    assert f"http://localhost:{server.port}/v1/chat/completions" in browser.text("curl")
    file = tmp_path / "request.py"
    file.write_text(browser.text("python"), encoding="utf-8")
    ran = subprocess.run([sys.executable, file], capture_output=True, text=True, timeout=240)
    assert (ran.returncode, ran.stdout) == (0, answer), ran.stderr
    if shutil.which("curl"):
        ran = subprocess.run(
            ["bash", "-c", browser.text("curl")], capture_output=True, text=True, timeout=240
        )
        frames = [line[6:] for line in ran.stdout.splitlines() if line.startswith("data: {")]
        choices = [choice for frame in frames for choice in json.loads(frame)["choices"]]
        assert "".join(choice["delta"].get("content") or "" for choice in choices) == answer


def test_hostile_text_is_text(page: Console) -> None:
    browser = page.page
    browser.complaints()
    browser.set("max_tokens", "650")
    browser.set("message", HOSTILE + LONG_LINE)
    browser["send"].click()
    browser.until(browser.is_idle)
    assert browser.notes()[-1].startswith(tuple("123456789"))
    (answer,) = browser.answers()
    assert HOSTILE + LONG_LINE in answer
    tags = "return [...new Set([...document.querySelectorAll('.text *')].map((e) => e.tagName))]"
    assert browser.run(tags) == ["DIV"]
    assert "console" in browser.run("return document.title")
    assert browser.run("return document.body.scrollWidth <= innerWidth")
    assert browser["pulse"].is_displayed()
    browser.run("document.getElementById('turns').scrollTop = 700")
    blocked = (
        "try { document.body.innerHTML = '<b>x</b>'; return 'done' } catch (e) { return e.name }"
    )
    assert browser.run(blocked) == "TypeError"  # Trusted Types: no script can make markup
    assert [text for text in browser.complaints() if "TrustedHTML" not in text] == []


def test_a_very_long_answer_does_not_hold_up_the_page(page: Console) -> None:
    """One million characters on one line and on many, as a burst, through the page's own writer."""
    browser = page.page
    script = """
        const [line, done] = arguments;
        import('/chat.js').then(async ({TextWriter}) => {
          const element = document.createElement('div');
          element.className = 'text';
          document.getElementById('turns').append(element);
          const writer = new TextWriter(element, (change) => change());
          for (let i = 0; i < 100; i++) {
            writer.write(line);
            await new Promise((resolve) => setTimeout(resolve));
          }
          writer.flush();
          const blocks = element.childElementCount, length = element.textContent.length;
          element.remove();
          done([length, blocks]);
        });
    """
    for text in ("\U0001f600" * 5_000, ("y" * 99 + "\n") * 100):
        length, blocks = browser.run_async(script, text)
        assert length == 1_000_000  # UTF-16 units
        assert blocks > 100


FENCED = """Say `x`:
```py
if x:
    return ```1
  ```
```not code``` and
```
open"""


@pytest.mark.parametrize("size", [1, 3, 7, 1000])
def test_code_between_fences_is_in_monospace(page: Console, size: int) -> None:
    script = """
        const [text, size, done] = arguments;
        import('/chat.js').then(async ({TextWriter}) => {
          const element = document.createElement('div');
          element.className = 'text';
          document.getElementById('turns').append(element);
          const writer = new TextWriter(element, (change) => change());
          for (let i = 0; i < text.length; i += size) {
            writer.write(text.slice(i, i + size));
            writer.show(writer.held());
          }
          writer.flush();
          const parts = [...element.children].map((block) =>
            [getComputedStyle(block).fontFamily.includes('monospace'), block.textContent]);
          element.remove();
          done(parts);
        });
    """
    parts = page.page.run_async(script, FENCED, size)
    assert "".join(text for _, text in parts) == FENCED
    code = "".join(text for is_code, text in parts if is_code)
    assert code == "```py\nif x:\n    return ```1\n  ```\n```\nopen"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_fits_a_phone(page: Console, scheme: str) -> None:
    browser = page.page
    browser.resize(*PHONE, mobile=True)
    browser.colours(scheme)
    try:
        browser.set("max_tokens", "60")
        browser.ask(f"{QUESTION} {'w' * 200}")
        browser.until(browser.is_idle)
        assert browser.run("return document.documentElement.scrollWidth") == PHONE[0]
        small = """
            return [...document.querySelectorAll('button, textarea, summary')]
              .filter((each) => each.offsetParent && each.getBoundingClientRect().height < 24)
              .map((each) => each.outerHTML)
        """
        assert browser.run(small) == []
        shown = "return document.querySelector('.note').getBoundingClientRect().bottom"
        assert browser.run(shown) < browser.run("return innerHeight") - 150  # above the buttons
        if scheme == "dark":
            page.screenshot("phone-dark")
    finally:
        browser.resize(1180, 800)
        browser.colours("light")


def test_keyboard_and_screen_reader(page: Console) -> None:
    browser = page.page
    tree = browser.devtools("Accessibility.getFullAXTree")["nodes"]
    names = {
        (node["role"]["value"], node["name"]["value"])
        for node in tree
        if not node.get("ignored") and node.get("name", {}).get("value")
    }
    for role, name in (
        *(("textbox", "Message"), ("button", "Send"), ("button", "Stop"), ("button", "Retry")),
        *(("heading", "smollm2-135m-cpu"), ("complementary", "Pulse"), ("list", "Conversation")),
        *(
            ("link", "Skip to the message"),
            ("meter", "KV cache, reserved"),
            ("table", "Last minute, in ms"),
        ),
    ):
        assert (role, name) in names, sorted(names)
    focusable = [
        node
        for node in tree
        if any(
            p["name"] == "focusable" and p["value"].get("value") for p in node.get("properties", [])
        )
        and node["role"]["value"] not in ("RootWebArea", "generic")
    ]
    assert [node for node in focusable if not node.get("name", {}).get("value")] == []
    browser.ask(QUESTION)
    browser.until(lambda: len("".join(browser.answers())) > 20)
    browser["message"].send_keys("\ue00c")  # Esc
    browser.until(browser.is_idle)
    assert browser.notes() == ["stopped"]
    order = []
    browser.run("document.activeElement.blur(); document.body.focus()")
    for _ in range(20):  # all around
        browser.press("\ue004")  # Tab
        order.append(
            browser.run("return document.activeElement.id || document.activeElement.tagName")
        )
    assert {"turns", "message", "send"} <= set(order)


def test_an_engine_killed_under_the_page(page: Console) -> None:
    browser, server = page.page, page.server
    restarts = int(browser.text("restarts"))
    browser.ask(QUESTION)
    browser.until(lambda: len("".join(browser.answers())) > 60)
    seen = browser.run("""
        window.states = [];
        const state = document.getElementById('state');
        new MutationObserver(() => window.states.push(state.dataset.state))
          .observe(state, {attributes: true});
        return true;
    """)
    assert seen
    (triton,) = [pid for pid, name in server.processes().items() if name == "tritonserver"]
    page.loads.unlink()
    subprocess.run(["kill", "-9", str(triton)], check=True)
    browser.until(lambda: browser.text("state") == "the engine is restarting")
    page.loads.touch()
    browser.until(browser.is_idle)
    assert "bad" in str(browser.run("return document.querySelector('.note').className"))
    page.screenshot("restarting")
    browser.until(lambda: browser.text("state") == "ready")
    browser.until(lambda: browser.text("restarts") == str(restarts + 1))
    assert browser.run("return window.states") == ["restarting", "ready"]
    assert "the engine exited" in browser.text("events")
    browser.set("max_tokens", "20")
    browser["retry"].click()
    browser.until(browser.is_idle)
    assert "20 tokens, ended by length" in browser.notes()[-1]


@pytest.mark.timeout(0)
def test_a_long_watch_does_not_grow(page: Console, request: pytest.FixtureRequest) -> None:
    minutes = request.config.getoption("--pulse-minutes")
    if not minutes:
        pytest.skip("give --pulse-minutes 10")
    browser = page.page
    browser.devtools("Performance.enable")

    def size() -> dict[str, float]:
        browser.run("gc()")
        metrics = browser.devtools("Performance.getMetrics")["metrics"]
        names = ("JSHeapUsedSize", "Nodes", "JSEventListeners")
        return {each["name"]: each["value"] for each in metrics if each["name"] in names}

    browser.ask(QUESTION)
    browser.until(browser.is_idle)
    time.sleep(130)  # the chart is full
    sizes = [size()]
    end = time.monotonic() + 60 * minutes
    while time.monotonic() < end:
        time.sleep(20)
        sizes.append(size())
    third = len(sizes) // 3
    early, late = (
        min(each["JSHeapUsedSize"] for each in part) for part in (sizes[:third], sizes[-third:])
    )
    assert late < early + 200_000
    assert sizes[-1]["Nodes"] <= sizes[0]["Nodes"] + 50
    assert sizes[-1]["JSEventListeners"] == sizes[0]["JSEventListeners"]


def test_the_end_of_the_server_is_shown(page: Console) -> None:
    browser, server = page.page, page.server
    assert server.end() == 0
    browser.until(lambda: browser.text("state").startswith("the server has stopped"))
    browser.ask("Hi")
    browser.until(browser.is_idle)
    assert "bad" in str(browser.run("return document.querySelector('.note').className"))
    browser.complaints()
