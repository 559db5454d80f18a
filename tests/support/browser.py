"""The console's page in Chromium."""

from __future__ import annotations

import base64
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement
from tests.support.waiting import PATIENCE_S, settles

NAMES = ("chromium", "chromium-browser", "google-chrome")
_OPTIONS = (
    *("--headless=new", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"),
    *("--no-sandbox", "--force-device-scale-factor=1", "--js-flags=--expose-gc"),
)
_WIDE = (1180, 800)


def chromium() -> tuple[str, str] | None:
    """Return the paths of Chromium and its driver; None unless both are installed."""
    browser = next(filter(None, map(shutil.which, NAMES)), None)
    driver = shutil.which("chromedriver")
    return (browser, driver) if browser and driver else None


@contextmanager
def open_browser(browser: str, driver: str, profile: Path) -> Iterator[Page]:
    """Run Chromium without a window during the block.

    Args:
        browser: its path.
        driver: path of chromedriver.
        profile: an empty folder.
    """
    options = webdriver.ChromeOptions()
    options.binary_location = browser
    for argument in (*_OPTIONS, f"--user-data-dir={profile}"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    chrome = webdriver.Chrome(options=options, service=Service(driver))
    chrome.set_script_timeout(PATIENCE_S)
    try:
        yield Page(chrome)
    finally:
        chrome.quit()


class Page:
    """The page as a user has it: by ids, keys and texts."""

    def __init__(self, chrome: webdriver.Chrome) -> None:
        self._chrome = chrome
        self.resize(*_WIDE)

    def open(self, url: str) -> None:
        self._chrome.get(url)

    def __getitem__(self, name: str) -> WebElement:
        """Return the element with an id."""
        return self._chrome.find_element(By.ID, name)

    def text(self, name: str) -> str:
        return str(self[name].get_property("textContent"))

    def answers(self) -> list[str]:
        """Return the texts of the answers, oldest first."""
        return list(self.run(
            "return [...document.querySelectorAll('.assistant .text:not(.reasoning)')]"
            ".map((each) => each.textContent)"
        ))  # fmt: skip

    def notes(self) -> list[str]:
        """Return the line below each answer."""
        return list(self.run(
            "return [...document.querySelectorAll('.note')].map((each) => each.textContent)"
        ))  # fmt: skip

    def ask(self, message: str) -> None:
        """Type a message and Enter; `message` is in the basic plane, as chromedriver demands."""
        self["message"].send_keys(message + "\n")

    def set(self, name: str, value: str) -> None:
        """Set a field at once, as a paste does."""
        self.run(
            "const field = document.getElementById(arguments[0]); field.value = arguments[1];"
            "field.dispatchEvent(new Event('input', {bubbles: true}))",
            name,
            value,
        )

    def press(self, keys: str) -> None:
        """Press keys wherever the focus is."""
        ActionChains(self._chrome).send_keys(keys).perform()

    def run_async(self, script: str, *arguments: object) -> Any:
        """Run a script; its last argument is the function to call with the result."""
        return self._chrome.execute_async_script(script, *arguments)

    def run(self, script: str, *arguments: object) -> Any:
        return self._chrome.execute_script(script, *arguments)

    def until(self, condition: Callable[[], bool], what: str = "") -> None:
        assert settles(condition), what or self.run("return document.body.innerText")

    def is_idle(self) -> bool:
        return bool(self["send"].is_enabled())

    def resize(self, width: int, height: int, *, mobile: bool = False) -> None:
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": mobile}
        self.devtools("Emulation.setDeviceMetricsOverride", **metrics)

    def colours(self, scheme: str) -> None:
        """Prefer `light` or `dark`."""
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.devtools("Emulation.setEmulatedMedia", features=features)

    def devtools(self, command: str, **parameters: object) -> Any:
        return self._chrome.execute_cdp_cmd(command, parameters)

    def complaints(self) -> list[str]:
        """Return what the browser has logged since the last call."""
        return [entry["message"] for entry in self._chrome.get_log("browser")]

    def screenshot(self, file: Path) -> None:
        """Write a PNG of what is in sight."""
        file.parent.mkdir(parents=True, exist_ok=True)
        picture = self.devtools("Page.captureScreenshot", format="png", optimizeForSpeed=False)
        file.write_bytes(base64.b64decode(picture["data"]))
