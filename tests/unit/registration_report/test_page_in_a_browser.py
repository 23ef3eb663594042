"""The report's page in a real browser, light and dark, on a wide and on a narrow screen."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from klamm.registration_report.page import render
from klamm.registration_report.report import IgnoringClient, Reach, Report, SupportRow, VersionWindow

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.browser import Browser, Page

pytestmark = pytest.mark.process

DAY_MS = 86_400_000
CONFIGS = ("acks", "heartbeat.interval.ms", "session.timeout.ms")
VERSIONS = (("klamm-kafka-python", "1.0"), ("confluent-kafka-python", "2.11.0-rdkafka-2.11.0"), ("librdkafka", "2.6"))
USER = "CN=payments,OU=Retail,O=Example Corporation,L=Berlin,C=DE"
REPORT = Report(
    rows=tuple(
        SupportRow(
            software=software,
            version=version,
            config=config,
            clients=number,
            clients_total=3,
            users=("alice", USER),
            last_registered_ms=DAY_MS,
        )
        for number, (software, version) in enumerate(VERSIONS)
        for config in CONFIGS
    ),
    clients=9,
    records=12,
    reach=tuple(Reach(config=config, following=4, clients=9, unknown=2) for config in CONFIGS),
    users=tuple(Reach(config=config, following=4, clients=9, unknown=2, user=USER) for config in CONFIGS),
    users_total=1,
    ignoring=(
        IgnoringClient(config="acks", user=USER, client_id="orders" * 12, software="librdkafka", version="2.6"),
        IgnoringClient(
            config="acks", user="bob", client_id="<b>", software="unknown", version="unknown", supported_configs=None
        ),
    ),
    ignoring_total=15,
    windows=tuple(
        VersionWindow(start_ms=day * DAY_MS, software=software, version=version, clients=day + 1)
        for day in range(20)
        for software, version in VERSIONS
    ),
    versions_total=3,
    never_registered=2,
)


@pytest.fixture(scope="module")
def opened(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    source = tmp_path_factory.mktemp("page") / "report.html"
    source.write_text(render(REPORT, title=f"Client configs of {'broker.example.org:9092,' * 4}"), encoding="utf-8")
    shown = browser.open(source.as_uri())
    yield shown
    shown.close()


@pytest.fixture
def page(opened: Page) -> Page:
    opened.look()
    return opened


def test_page_makes_no_requests_and_has_no_errors(page: Page) -> None:
    assert len(page.requests) == 1
    assert page.requests[0].startswith("file:")
    assert page.errors == []


def test_charts_have_visible_marks(page: Page) -> None:
    # when
    marks = page.evaluate(
        """[...document.querySelectorAll("svg")].map(svg => [...svg.querySelectorAll("rect, polyline, circle")]
            .map(one => one.getBoundingClientRect()).filter(box => box.width > 0 && box.height > 0).length)"""
    )
    # then
    overview, *by_version, over_time = marks
    assert overview == 3 * len(CONFIGS), "who follows, who would ignore it, who never registered"
    assert by_version == [5] * len(CONFIGS), "one bar of each version, two where only some follow"
    assert over_time == 2 * len(VERSIONS)
    widths = page.evaluate('[...document.querySelectorAll("svg rect")].slice(0, 3).map(one => one.width.baseVal.value)')
    assert widths == pytest.approx([widths[2] * 2, widths[2] * 1.5, widths[2]], rel=0.01), "4, 3 and 2 of 9"


def test_chart_elements_do_not_overlap_or_overflow(page: Page) -> None:
    # when
    clashes = page.evaluate(
        """[...document.querySelectorAll("svg")].flatMap(svg => {
            const frame = svg.getBoundingClientRect();
            const boxes = [...svg.querySelectorAll("text, rect")].map(one => [one, one.getBoundingClientRect()]);
            const outside = boxes.filter(([, box]) => box.left < frame.left - 1 || box.right > frame.right + 1);
            const over = boxes.filter(([one, box]) => one.tagName === "text" && boxes.some(([other, its]) =>
                other !== one && box.left < its.right - 1 && its.left < box.right - 1
                && box.top < its.bottom - 2 && its.top < box.bottom - 2));
            return [...outside, ...over].map(([one]) => one.textContent || one.className.baseVal);
        })"""
    )
    # then
    assert clashes == []


def test_tables_have_all_rows(page: Page) -> None:
    rows = page.evaluate('[...document.querySelectorAll("table")].map(one => one.rows.length - 1)')
    assert rows == [len(REPORT.ignoring), len(REPORT.users), len(REPORT.rows)]
    text = page.text()
    for part in (
        "unknown (never registered)",
        "registered []",
        "<b>",
        USER,
        "4 of 9",
        "2 of 9 clients never registered",
    ):
        assert part in text


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [360, 1600])
def test_page_fits_the_screen_with_sufficient_contrast(page: Page, width: int, dark: bool) -> None:
    # when
    page.look(width=width, dark=dark)
    # then
    assert page.evaluate("document.documentElement.scrollWidth") <= width, "the page itself does not scroll sideways"
    # WCAG: 4.5 for text, 3 for what is drawn; the kinds of bars are also told by their order and by numbers.
    assert page.evaluate(_CONTRAST % ("body", "color")) > 4.5
    assert page.evaluate(_CONTRAST % ("p.soft", "color")) > 4.5
    assert page.evaluate(_CONTRAST % ("svg text", "fill")) > 4.5
    assert page.evaluate(_CONTRAST % ("rect.follow", "fill")) > 3
    assert page.evaluate(_CONTRAST % ("polyline", "stroke")) > 3


_CONTRAST = """(() => {
    const light = colour => colour.match(/[0-9.]+/g).slice(0, 3).map(part => part / 255)
        .map(part => part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4)
        .reduce((sum, part, at) => sum + part * [0.2126, 0.7152, 0.0722][at], 0);
    const ink = light(getComputedStyle(document.querySelector("%s")).%s);
    const ground = light(getComputedStyle(document.body).backgroundColor);
    return (Math.max(ink, ground) + 0.05) / (Math.min(ink, ground) + 0.05);
})()"""


def test_on_a_narrow_screen_the_counts_of_bars_are_seen_at_once(page: Page) -> None:
    page.look(width=360)
    right = page.evaluate(
        'Math.max(...[...document.querySelectorAll("svg text.soft")].filter(one => /of/.test(one.textContent))'
        ".map(one => one.getBoundingClientRect().right))"
    )
    assert right < 360


def test_bars_fill_a_narrow_screen(page: Page) -> None:
    ends = """[...document.querySelectorAll("svg.bars")].slice(0, 2).map(svg => [svg.getBoundingClientRect().right,
        Math.max(...[...svg.querySelectorAll("rect")].map(one => one.getBoundingClientRect().right))])"""
    for width in (1280, 380):
        page.look(width=width)
        for frame, bar in page.evaluate(ends):
            assert frame < width, "nothing is cut"
            assert bar == pytest.approx(frame, abs=1), "the longest bar fills the room"


def test_empty_topic_is_reported(browser: Browser, tmp_path: Path) -> None:
    (source := tmp_path / "empty.html").write_text(render(Report(rows=(), clients=0, records=0), title="none"))
    shown = browser.open(source.as_uri())
    assert "No client has registered yet." in shown.text()
    shown.close()
