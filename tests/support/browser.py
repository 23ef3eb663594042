"""Headless Chromium that opens pages and reads their content, over the DevTools protocol on a pipe.

The protocol is JSON with a NUL byte after each message (``--remote-debugging-pipe``: descriptor 3 to it, 4 from it).
See https://chromedevtools.github.io/devtools-protocol/.
"""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from subprocess import PIPE
from typing import TYPE_CHECKING, Any, Final

from tests.support.processes import start_process, stop_process

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable
    from types import TracebackType
    from typing import Self

PROGRAMS: Final = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
"""Program names, in the order in which ``scripts/with_tools.py`` looks for them."""
_TIMEOUT_S: Final = 30.0
_FLAGS: Final = (
    "--headless=new",
    "--no-sandbox",  # its sandbox does not work for root, nor in most containers
    "--disable-dev-shm-usage",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-extensions",
    "--disable-sync",
    "--hide-scrollbars",
    "--no-default-browser-check",
    "--no-first-run",
    "--no-proxy-server",
    "--password-store=basic",
    "--use-mock-keychain",
    "--remote-debugging-pipe",
)
# The pipe's descriptors are 3 and 4. A shell moves them there, whatever numbers they have in this process.
_SHELL: Final = ("sh", "-c", 'exec "$0" "$@" 3<&0 4>&1 </dev/null >&2')


class BrowserError(RuntimeError):
    """The browser ended, did not respond in time, or rejected a command."""


class NavigatedError(BrowserError):
    """The page was replaced by another one during the command."""


def find_browser() -> str | None:
    """Return the program that ``CHROMIUM`` names, or a Chromium or Chrome on PATH; None if there is none."""
    named = os.environ.get("CHROMIUM")
    return named or next(filter(None, map(shutil.which, PROGRAMS)), None)


@dataclass(kw_only=True)
class Page:
    """One tab. Its events are recorded while a command is sent to it."""

    browser: Browser
    session_id: str
    target_id: str
    requests: list[str] = field(default_factory=list)
    """Requested URLs in order, beginning with the URL of the page."""
    errors: list[str] = field(default_factory=list)
    """Exceptions of scripts and errors of the console. A failed request is a console error."""
    loaded: int = 0
    """Number of loaded documents."""

    def evaluate(self, script: str) -> Any:
        """Return the value of a JavaScript expression as JSON, after awaiting a promise.

        Raises:
            BrowserError: The expression throws.
        """
        answer = self.send("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise BrowserError(f"{script}: {_thrown(answer['exceptionDetails'])}")
        return answer["result"].get("value")

    def text(self) -> str:
        """Return the visible text of the page."""
        return str(self.evaluate("document.body.innerText"))

    def wait_for(self, condition: str, *, timeout_s: float = _TIMEOUT_S) -> None:
        """Wait until a JavaScript expression is true.

        Raises:
            BrowserError: It stayed false until the timeout. The message contains the visible text of the page.
        """
        deadline = time.monotonic() + timeout_s
        while not self._holds(condition):
            if time.monotonic() > deadline:
                raise BrowserError(f"Waited {timeout_s:g} s in vain for {condition} on a page that says: {self.text()}")
            time.sleep(0.05)

    def _holds(self, condition: str) -> bool:
        """Return whether a JavaScript expression is true. It is not while the page is replaced by the next one."""
        try:
            return bool(self.evaluate(f"Boolean({condition})"))
        except NavigatedError:
            return False

    def look(self, *, width: int = 1280, height: int = 900, dark: bool = False) -> None:
        """Set the size of the screen in CSS pixels, and the preferred color scheme, dark or light."""
        self.send("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        preferred = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.send("Emulation.setEmulatedMedia", features=[preferred])

    def screenshot(self, path: Path) -> Path:
        """Write the whole page, including the part below the screen, as PNG; return the path."""
        answer = self.send("Page.captureScreenshot", format="png", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(answer["data"]))
        return path

    def goto(self, url: str) -> None:
        """Load a URL and wait until the page and its resources are loaded.

        Raises:
            BrowserError: The page cannot be loaded.
        """
        before = self.loaded
        answer = self.send("Page.navigate", url=url)
        if answer.get("errorText"):
            raise BrowserError(f"{url}: {answer['errorText']}")
        self.browser.listen_until(lambda: self.loaded > before, what=f"{url} to load")

    def send(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Send a command of the DevTools protocol to this tab and return its result.

        Raises:
            BrowserError: The command is rejected, or not answered in time.
        """
        return self.browser.send(method, session_id=self.session_id, **parameters)

    def close(self) -> None:
        """Close the tab."""
        self.browser.close(self)

    def note(self, method: str, parameters: dict[str, Any]) -> None:
        """Record an event of this tab."""
        match method:
            case "Network.requestWillBeSent":
                self.requests.append(parameters["request"]["url"])
            case "Page.loadEventFired":
                self.loaded += 1
            case "Runtime.exceptionThrown":
                self.errors.append(_thrown(parameters["exceptionDetails"]))
            case "Runtime.consoleAPICalled" if parameters["type"] in {"error", "assert"}:
                self.errors.append(" ".join(str(argument.get("value", argument)) for argument in parameters["args"]))
            case "Log.entryAdded" if parameters["entry"]["level"] == "error":
                self.errors.append(f"{parameters['entry']['text']} {parameters['entry'].get('url', '')}".strip())


class Browser:
    """Headless Chromium with its own profile, a context manager. Thread-confined; calls block.

    Args:
        program: Program that ``find_browser`` returned.
    """

    def __init__(self, program: str) -> None:
        self._program = program
        self._profile = Path()
        self._process: subprocess.Popen[bytes] | None = None
        self._pages: dict[str, Page] = {}
        self._answers: dict[int, dict[str, Any]] = {}
        self._received = b""
        self._last_id = 0

    def __enter__(self) -> Self:
        self._profile = Path(tempfile.mkdtemp(prefix="klamm-browser-"))
        command = [*_SHELL, self._program, *_FLAGS, f"--user-data-dir={self._profile}", "about:blank"]
        self._process = start_process(command, log=self._profile / "log", stdin=PIPE, stdout=PIPE)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process is not None:
            stop_process(self._process)
        # Child processes may still write to the profile while they end.
        shutil.rmtree(self._profile, ignore_errors=True)

    def open(self, url: str, *, width: int = 1280, height: int = 900, dark: bool = False) -> Page:
        """Load a URL in a new tab; see ``Page.goto`` and ``Page.look``.

        Raises:
            BrowserError: The page cannot be loaded.
        """
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        page = Page(browser=self, session_id=session, target_id=target)
        self._pages[session] = page
        for domain in ("Page", "Runtime", "Network", "Log"):
            page.send(f"{domain}.enable")
        page.look(width=width, height=height, dark=dark)
        page.goto(url)
        return page

    def close(self, page: Page) -> None:
        """Close a tab."""
        self._pages.pop(page.session_id, None)
        self.send("Target.closeTarget", targetId=page.target_id)

    def send(self, method: str, *, session_id: str | None = None, **parameters: Any) -> dict[str, Any]:
        """Send a command of the DevTools protocol and return its result.

        Raises:
            BrowserError: The command is rejected, or not answered in time.
        """
        assert self._process is not None, "it is used outside of its with"
        assert self._process.stdin is not None
        self._last_id = number = self._last_id + 1
        message: dict[str, Any] = {"id": number, "method": method, "params": parameters}
        if session_id is not None:
            message["sessionId"] = session_id
        try:
            self._process.stdin.write(json.dumps(message).encode() + b"\0")
            self._process.stdin.flush()
        except BrokenPipeError as error:
            raise BrowserError(f"The browser ended: {self._log()}") from error
        self.listen_until(lambda: number in self._answers, what=f"an answer to {method}")
        answer = self._answers.pop(number)
        if "error" in answer:
            raised = NavigatedError if "navigated" in answer["error"].get("message", "") else BrowserError
            raise raised(f"{method}: {answer['error']}")
        result: dict[str, Any] = answer["result"]
        return result

    def listen_until(self, condition: Callable[[], bool], *, what: str) -> None:
        """Read messages of the browser until a condition holds.

        Raises:
            BrowserError: The condition did not hold in time, or the browser ended.
        """
        assert self._process is not None, "it is used outside of its with"
        assert self._process.stdout is not None
        descriptor = self._process.stdout.fileno()
        deadline = time.monotonic() + _TIMEOUT_S
        poll = select.poll()  # takes any descriptor: after hundreds of tests there may be more than select() knows
        poll.register(descriptor, select.POLLIN)
        while not condition():
            if not poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
                raise BrowserError(f"Waited {_TIMEOUT_S:g} s in vain for {what}: {self._log()}")
            received = os.read(descriptor, 1 << 16)
            if not received:
                raise BrowserError(f"The browser ended while {what} was waited for: {self._log()}")
            *messages, self._received = (self._received + received).split(b"\0")
            for message in messages:
                self._take(json.loads(message))

    def _take(self, message: dict[str, Any]) -> None:
        if "id" in message:
            self._answers[message["id"]] = message
        elif (page := self._pages.get(message.get("sessionId", ""))) is not None:
            page.note(message["method"], message["params"])

    def _log(self) -> str:
        return (self._profile / "log").read_text(encoding="utf-8", errors="replace")[-1_000:]


def _thrown(details: dict[str, Any]) -> str:
    thrown = details.get("exception", {})
    return str(thrown.get("description") or thrown.get("value") or details["text"])
