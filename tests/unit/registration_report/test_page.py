"""The report as an HTML page: complete, self-contained, and safe against names chosen by clients."""

from __future__ import annotations

import re
from dataclasses import replace
from xml.etree import ElementTree

from klamm.registration_report.page import MAX_LINES, render
from klamm.registration_report.report import IgnoringClient, Reach, Report, SupportRow, VersionWindow

DAY_MS = 86_400_000


def row(software: str, version: str, clients: int, total: int) -> SupportRow:
    return SupportRow(
        software=software,
        version=version,
        config="acks",
        clients=clients,
        clients_total=total,
        users=("alice",),
        last_registered_ms=DAY_MS,
    )


def report(*rows: SupportRow, windows: tuple[VersionWindow, ...] = ()) -> Report:
    ignoring = (IgnoringClient(config="acks", user="bob", client_id="<old>", software="rdkafka", version="1"),)
    return Report(
        rows=rows,
        clients=9,
        records=12,
        unreadable=1,
        reach=(Reach(config="acks", following=3, clients=9),),
        users=(Reach(config="acks", following=1, clients=2, user="<bob>"),),
        users_total=7,
        ignoring=ignoring,
        ignoring_total=3,
        windows=windows,
    )


def pictures(page: str) -> list[ElementTree.Element]:
    return [ElementTree.fromstring(text) for text in re.findall(r"<svg.*?</svg>", page, re.DOTALL)]  # noqa: S314  # ours


def test_unregistered_clients_have_one_color_in_all_charts() -> None:
    # given
    never = replace(row("old", "7", 0, 5), unknown=5)
    whole = replace(report(never), reach=(Reach(config="acks", following=0, clients=5, unknown=5),))
    # when
    overview, bars = pictures(render(whole, title="clients"))
    # then
    assert [rect.get("class") for rect in overview.iter("rect")] == ["unknown"]
    assert [rect.get("class") for rect in bars.iter("rect")] == ["unknown"]


def test_bars_show_following_and_ignoring_clients() -> None:
    # when
    page = render(report(row("klamm", "1.0", 3, 4), row("old", "7", 0, 5)), title="clients")
    # then
    overview, bars = pictures(page)
    assert "3 of 9" in "".join(overview.itertext())
    widths = {
        kind: [float(rect.get("width", "")) for rect in bars.iter("rect") if rect.get("class") == kind]
        for kind in ("follow", "ignore")
    }
    assert len(widths["follow"]) == 1
    assert len(widths["ignore"]) == 2
    assert widths["follow"][0] > 2 * widths["ignore"][1]
    assert "and 2 more" in page
    assert "and 6 more users" in page
    assert "1 of 12 records are not registrations" in page


def test_client_names_are_escaped_on_the_page() -> None:
    # when
    page = render(report(row("<script>alert(1)</script>", '"><img>', 1, 1)), title="<b>")
    # then
    assert "<script" not in page
    assert "<img" not in page
    assert "<b>" not in page
    assert "&lt;old&gt;" in page
    assert "&lt;bob&gt;" in page


def test_page_loads_no_external_resources() -> None:
    page = render(report(row("klamm", "1.0", 1, 1)), title="clients")
    assert re.search(r"src=|href=\"(?!#)|https?://|@import|url\(", page) is None


def test_versions_over_time_are_stacked_and_small_ones_summarized() -> None:
    # given
    windows = tuple(
        VersionWindow(start_ms=day * DAY_MS, software="klamm", version=f"1.{version}", clients=version + 1)
        for day in range(3)
        for version in range(12)
    )
    # when
    page = render(report(row("klamm", "1.0", 1, 1), windows=windows), title="clients")
    # then
    *_, lines = pictures(page)
    assert len(list(lines.iter("polyline"))) == MAX_LINES
    assert "4 more versions with fewer registrations" in page
    heights = [float(point.split(",")[1]) for point in next(lines.iter("polyline")).get("points", "").split()]
    assert heights == sorted(heights, reverse=True)


def test_empty_topic_is_reported() -> None:
    assert "No client has registered yet" in render(Report(rows=(), clients=0, records=0), title="clients")
