"""The tests' browser reports errors of a page, so that a test without errors proves something."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.browser import BrowserError

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.browser import Browser

pytestmark = pytest.mark.process

PAGE = """<!doctype html><title>t</title>
<style>p { color: rgb(1, 2, 3) } @media (prefers-color-scheme: dark) { p { color: rgb(4, 5, 6) } }</style>
<p>seen</p><p hidden>unseen</p><img src="missing.png">
<script>console.error("said"); setTimeout(() => { document.title = "late" }, 1); throw new Error("thrown")</script>"""


def test_errors_requests_and_visible_content_are_reported(browser: Browser, tmp_path: Path) -> None:
    # given
    source = tmp_path / "page.html"
    source.write_text(PAGE, encoding="utf-8")
    # when
    page = browser.open(source.as_uri(), width=400, dark=True)
    page.wait_for("document.title === 'late'")
    # then
    assert page.text() == "seen"
    assert page.requests == [source.as_uri(), (tmp_path / "missing.png").as_uri()]
    assert any(error.startswith("Error: thrown") for error in page.errors)
    assert "said" in page.errors
    assert page.evaluate("innerWidth") == 400
    colour = "getComputedStyle(document.querySelector('p')).color"
    assert page.evaluate(colour) == "rgb(4, 5, 6)"
    page.look(width=800)
    assert (page.evaluate(colour), page.evaluate("innerWidth")) == ("rgb(1, 2, 3)", 800)
    assert page.screenshot(tmp_path / "page.png").read_bytes().startswith(b"\x89PNG")
    page.close()


def test_failed_page_load_is_an_error(browser: Browser, tmp_path: Path) -> None:
    with pytest.raises(BrowserError, match="ERR_FILE_NOT_FOUND"):
        browser.open((tmp_path / "none.html").as_uri())
