"""Parts of the page of the broker and the gateway."""

from __future__ import annotations

import re

import pytest

from klamm.page.html import (
    Cell,
    Table,
    document,
    filter_form,
    link_to,
    section,
    size_text,
    table,
    warning_list,
)

HOSTILE = '<script>alert("x")</script>\x1b[2J&'


def test_names_chosen_by_clients_are_escaped() -> None:
    # when
    cell = Cell(HOSTILE, link_to({"topic": HOSTILE}))
    content = Table(heads=[("Topic", "")], rows=[[cell]], total=60, size=1, parameter="tp")
    html = document(
        HOSTILE,
        [section(HOSTILE, table(content, {"q": HOSTILE})), filter_form(HOSTILE, hint=HOSTILE), warning_list([HOSTILE])],
    )
    # then
    assert "<script" not in html
    assert 'alert("x")' not in html
    assert "\x1b" not in section(HOSTILE, table(content, {})) + warning_list([HOSTILE])


def test_long_name_is_truncated() -> None:
    content = Table(heads=[("Topic", "")], rows=[[Cell("x" * 100_000)]], total=1)
    assert len(table(content, {})) < 1000


def test_name_breaks_at_dots_and_value_does_not() -> None:
    row = [Cell("unclean.leader.election.enable", kind="name"), Cell("0.5")]
    html = table(Table(heads=[("Config", ""), ("Value", "")], rows=[row], total=1), {})
    assert "unclean.<wbr>leader.<wbr>election.<wbr>enable" in html
    assert "<td>0.5</td>" in html


def test_only_names_and_long_words_can_be_broken() -> None:
    cells = [Cell("1073741824"), Cell("orders.eu", kind="name"), Cell("compact,delete"), Cell("x" * 30 + "&<")]
    html = table(Table(heads=[("V", "")] * 4, rows=[cells], total=1), {})
    assert re.findall("<td[^>]*>(.*?)</td>", html) == [
        "1073741824",
        "orders.<wbr>eu",
        "compact,<wbr>delete",
        f"{'x' * 13}<wbr>{'x' * 13}<wbr>xxxx&amp;&lt;",
    ]


def test_exact_value_is_left_out_on_a_narrow_screen_and_time_breaks_between_date_and_time() -> None:
    cells = [Cell("7 days", exact="604800000", remark="default"), Cell("2026-11-28 09:46:19", kind="time")]
    html = table(Table(heads=[("V", ""), ("T", "")], rows=[cells], total=1), {})
    assert '7 days <span class="soft extra">604800000,</span> <span class="soft">default</span>' in html
    assert '<span class="word">2026-11-28</span> <span class="word">09:46:19</span>' in html


def test_pager_links_to_neighbors_and_keeps_the_filter() -> None:
    content = Table(heads=[("T", "")], rows=[[Cell("a")]] * 10, total=35, first=10, size=10, parameter="tp")
    html = table(content, {"q": "a b", "gp": "2"})
    assert 'href="/?q=a+b&amp;gp=2&amp;tp=1"' in html
    assert 'href="/?q=a+b&amp;gp=2&amp;tp=3"' in html
    assert "11 to 20 of 35" in html


def test_single_page_table_has_no_pager() -> None:
    assert "<nav" not in table(Table(heads=[("T", "")], rows=[[Cell("a")]], total=1, size=10, parameter="tp"), {})
    assert table(Table(heads=[], rows=[], total=0, empty="No topic."), {}) == '<p class="soft">No topic.</p>'


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (5 * 1024**3, "5.0 GiB"), (2**60, "1,048,576.0 TiB")],
)
def test_sizes_are_in_binary_units(size: int, text: str) -> None:
    assert size_text(size) == text
    assert size_text(size, is_partial=True) == f"{text}+"


def test_heading_of_section_links_to_itself() -> None:
    assert '<h2 id="topic-orders-eu"><a href="#topic-orders-eu">Topic orders.eu</a></h2>' in section(
        "Topic orders.eu", ""
    )
