"""The status page in a real browser, while the mirror runs, stops and restarts (K894-47)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

import pytest

from klamm.mirror.progress.flow_progress import (
    ConfigDifference,
    FlowGroups,
    FlowState,
    MirroredGroupOffset,
    MirrorStatus,
)
from klamm.mirror.status.live import WatchServer
from klamm.mirror.status.page import FIRST_ROWS, render
from klamm.page.views import HTML
from tests.support.mirror_status import progress_row
from tests.support.processes import free_port

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path
    from types import TracebackType

    from tests.support.browser import Browser, Page

pytestmark = pytest.mark.process

LONG = "A.payments.europe." + "transactions-" * 8
REASON = "offset 17 of the source is gone before it was mirrored"
BROKEN_NUMBERS = """(() => {
  const broken = [], nodes = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (nodes.nextNode()) {
    const range = document.createRange(), text = nodes.currentNode.data.trim();
    range.selectNodeContents(nodes.currentNode);
    if (/^[0-9,]{4,}$/.test(text) && range.getClientRects().length > 1) broken.push(text);
  }
  return broken;
})()"""
"""JavaScript that returns the numbers of the page that stand in more than one line."""
SCREENS = [
    (1280, True),
    (500, False),
    *(pytest.param(*each, marks=pytest.mark.long) for each in ((390, True), (1280, False))),
]


class Mirror:
    """What is known of a mirror, and its page, which can go away and come back."""

    def __init__(self, topics: int) -> None:
        self.status = MirrorStatus(["A->B"], preserving=["A->B"])
        self.status.set_state("A->B", FlowState.RUNNING)
        self.lag("half", 500)
        self.lag("most", 1000)
        ends = {"end_offset": 12_345_678_901, "next_offset": 12_345_678_901}
        self.status.update("s", [progress_row(topic="long", remote_topic=LONG, **ends)])
        self.status.update(
            "s", [progress_row(topic="bad", remote_topic="A.bad", state="STOPPED", reason=REASON, end_offset=10)]
        )
        rows = [progress_row(topic=f"t{at}", remote_topic=f"A.t{at:03d}", end_offset=10) for at in range(topics - 4)]
        self.status.update("s", rows)
        self.status.set_rejected("A->B", {"A.secret": "POLICY_VIOLATION: topics need 3 replicas"})
        self.status.set_drift("A->B", (_difference("retention.ms"), _difference("cleanup.policy")))
        self.groups = {"A->B": FlowGroups(offsets=(_group("billing", ""), _group("audit", "nothing was mirrored yet")))}
        self._port = free_port()
        self.url = f"http://127.0.0.1:{self._port}/"
        self._server: WatchServer | None = None

    def lag(self, topic: str, lag: int) -> None:
        self.status.update("s", [progress_row(topic=topic, remote_topic=f"A.{topic}", end_offset=10 + lag)])

    def start(self) -> None:
        self._server = WatchServer("127.0.0.1", self._port, {}, {"/": self._view})
        self._server.__enter__()

    def stop(self) -> None:
        if self._server is not None:
            self._server.__exit__(None, None, None)
            self._server = None

    async def _view(self, query: Mapping[str, str]) -> tuple[str, str]:
        wanted = query.get("q", "")
        return HTML, render(self.status.snapshot(), self.status.drift(), self.groups, at_s=0, wanted=wanted)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def _difference(name: str) -> ConfigDifference:
    return ConfigDifference(
        topic=LONG,
        name=name,
        source_value="86400000",
        source_is_default=False,
        target_value="604800000",
        target_is_default=True,
        rule="set on the source topic",
        is_drift=True,
    )


def _group(name: str, reason: str) -> MirroredGroupOffset:
    return MirroredGroupOffset(
        group=name, topic="orders", partition=1, remote_topic="A.orders", source_offset=7, target_offset=6,
        again_at_most=1, reason=reason,
    )  # fmt: skip


@pytest.fixture(scope="module")
def mirror() -> Iterator[Mirror]:
    with Mirror(500) as running:
        yield running


@pytest.fixture
def page(browser: Browser, mirror: Mirror) -> Iterator[Page]:
    opened = browser.open(mirror.url)
    yield opened
    opened.close()


def shown(page: Page, selector: str) -> list[str]:
    """The first words of each row that is seen."""
    script = f"[...document.querySelectorAll({selector!r})].filter(row => row.offsetParent).map(row => row.innerText)"
    return [str(text).split("\t")[0].strip() for text in page.evaluate(script)]


def test_topics_have_progress_bars_and_stopped_ones_come_first(page: Page) -> None:
    # when
    topics = shown(page, "table.topics tbody tr")
    bars = page.evaluate(
        "[...document.querySelectorAll('.track')].filter(one => one.offsetWidth)"
        ".map(one => [one.nextSibling.innerText, one.firstChild.offsetWidth / one.offsetWidth])"
    )
    # then
    assert [topics[0], *topics[2:4]] == ["A.bad", "A.most", "A.half"]
    assert REASON in topics[1]
    assert shown(page, "table.topics th")[2] == "Copied"
    assert {text for text, _ in bars} >= {"0%", "1%"}, "10 of 1,010 records are on the target, 10 of 510"
    for text, share in bars:
        assert share == pytest.approx(int(text.rstrip("%")) / 100, abs=0.02)
    assert page.errors == []
    assert set(page.requests) == {page.requests[0]}


def test_filter_shows_topics_with_a_part_of_the_name_and_stays_when_the_page_is_refreshed(page: Page) -> None:
    # given
    page.evaluate("document.querySelector('input[name=q]').value = 'PAYMENTS'")
    # when
    page.evaluate("document.querySelector('form').submit()")
    page.wait_for("location.search === '?q=PAYMENTS' && document.readyState === 'complete'")
    # then
    assert shown(page, "table.topics tbody tr") == [LONG]
    assert "No group has this in its name" in page.text()
    assert "A.secret" not in page.text()
    # when
    page.evaluate("document.querySelector('main').id = 'before'")
    page.wait_for("document.querySelector('main').id !== 'before'")
    # then
    assert shown(page, "table.topics tbody tr") == [LONG]
    assert page.errors == []


def test_tables_after_500_topics_are_reachable(page: Page) -> None:
    assert len(shown(page, "table.topics tbody tr:not(.note)")) == FIRST_ROWS
    text = page.text()
    for words in ("POLICY_VIOLATION", "Configs that differ: 2", "604800000 default", "nothing was mirrored yet"):
        assert words in text
    assert text.index("audit") < text.index("billing"), "groups with a reason stand first"
    assert page.evaluate("document.documentElement.scrollHeight") < 2500
    page.evaluate("document.querySelector('input[type=checkbox]').click()")
    assert len(shown(page, "table.topics tbody tr:not(.note)")) == 500


@pytest.mark.parametrize(("width", "dark"), SCREENS)
def test_page_fits_screen_and_has_contrast(page: Page, width: int, dark: bool, tmp_path: Path) -> None:
    # when
    page.look(width=width, dark=dark)
    # then
    assert page.evaluate("document.documentElement.scrollWidth") <= width, "the page itself does not scroll sideways"
    seen = page.evaluate("document.querySelector('td.state').getBoundingClientRect().right")
    assert seen <= width, "the state of a topic is seen without scrolling"
    cut = page.evaluate(
        "[...document.querySelectorAll('.wide')].filter(one => one.scrollWidth > one.clientWidth).length"
    )
    assert cut == 0, "no table is cut off"
    assert "1 day" in page.text()
    assert page.evaluate(BROKEN_NUMBERS) == []
    ink, back = (
        page.evaluate(f"getComputedStyle(document.body).{name}.match(/[0-9]+/g).map(Number).reduce((a, b) => a + b)")
        for name in ("color", "backgroundColor")
    )
    assert (ink > back) == dark
    assert abs(ink - back) > 450
    assert page.screenshot(tmp_path / "page.png").stat().st_size > 10_000


def test_refresh_keeps_scroll_and_open_sections(page: Page, mirror: Mirror) -> None:
    # given
    page.look(width=160)  # so narrow that a table is wider
    page.evaluate("document.querySelector('input[type=checkbox]').click()")
    page.evaluate("document.querySelector('.wide').scrollLeft = 40; scrollTo(0, 600)")
    # when
    mirror.lag("news", 400)
    # then
    page.wait_for("document.body.innerText.includes('A.news')")
    assert page.evaluate("document.querySelector('.wide').scrollLeft") == 40
    assert page.evaluate("scrollY") == 600
    assert len(shown(page, "table.topics tbody tr:not(.note)")) == 500
    assert page.loaded == 1


def test_refresh_keeps_selected_text(page: Page, mirror: Mirror) -> None:
    # when
    page.evaluate("getSelection().selectAllChildren(document.querySelector('tr.note td'))")
    # then
    page.wait_for("document.getElementById('away').textContent.includes('while text is selected')")
    assert REASON in page.evaluate("getSelection().toString()")
    # when
    mirror.lag("later", 300)
    page.evaluate("getSelection().removeAllRanges()")
    # then
    page.wait_for("document.body.innerText.includes('A.later')")


def test_page_reports_lost_mirror_and_recovers(page: Page, mirror: Mirror) -> None:
    # when
    mirror.stop()
    # then
    page.wait_for("document.getElementById('away').textContent.startsWith('The mirror has not answered since ')")
    assert "A.most" in page.text(), "what was known last stays"
    # when
    mirror.start()
    # then
    page.wait_for("document.getElementById('away').textContent === ''")
