"""Latest changes on the page."""

from __future__ import annotations

import re

from klamm.history.change import RecordedChange
from klamm.page.changes import changes_section

HOSTILE = "<script>\x1b[2J"


def change(
    *, resource: str = "TOPIC:a", name: str = "retention.ms", old: str | None = None, new: str | None = None
) -> RecordedChange:
    return RecordedChange(
        at_ms=1_790_000_000_000, resource=resource, name=name, old=old, new=new, principal="User:bob", client_id="tool"
    )


def test_change_shows_both_values_in_words_and_principal() -> None:
    # when
    html = changes_section([change(old="604800000")], {})
    # then: a narrow screen hides the columns of the former value and the principal, and shows them below other cells
    assert re.findall("<td[^>]*>(.*?)</td>", html) == [
        '<span class="word">2026-09-21</span> <span class="word">14:13:20</span>',
        'TOPIC:<wbr>a<span class="soft narrow">by User:<wbr>bob (tool)</span>',
        "retention.<wbr>ms",
        "7 days",
        'unset<span class="soft narrow">before: 7 days</span>',
        "User:bob (tool)",
    ]


def test_default_of_brokers_is_named() -> None:
    assert "the default of all brokers" in changes_section([change(resource="BROKER:")], {})


def test_values_of_change_are_escaped() -> None:
    html = changes_section([change(name=HOSTILE, old=HOSTILE, new=HOSTILE)], {})
    assert "<script" not in html
    assert "\x1b" not in html


def test_empty_history_is_reported() -> None:
    html = changes_section([], {})
    assert "No change is recorded." in html
    assert "damaged" not in html


def test_number_of_damaged_entries_is_shown() -> None:
    assert "2 history items damaged and not shown" in changes_section([], {}, damaged=2)
