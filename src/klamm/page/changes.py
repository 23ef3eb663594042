"""Latest config changes on the page, drawn from the change history."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from klamm.configs.durations import value_in_words
from klamm.display import counted
from klamm.page.html import Cell, Table, section, short, shown, table, time_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from klamm.history.change import RecordedChange
    from klamm.page.html import Query

MAX_CHANGES: Final = 10
"""Number of changes on the page. ``klamm configs history`` shows all of them."""


def changes_section(
    changes: Sequence[RecordedChange], query: Query, *, damaged: int = 0, problem: str | None = None
) -> str:
    """Return the part of the page with the latest changes.

    Args:
        changes: The changes, the latest one first.
        query: Query of the page.
        damaged: Number of entries of the history that cannot be read.
        problem: Reason why the history cannot be read at present, plain text; None if it can.
    """
    content = Table(
        heads=[
            ("Time (UTC)", ""), ("Resource", ""), ("Config", ""), ("Before", "extra"), ("After", ""),
            ("Changed by", "extra"),
        ],
        rows=[
            (
                Cell(time_text(change.at_ms / 1000).removesuffix(" UTC"), kind="time"),
                Cell(short(change.subject), kind="name", narrow=f"by {_author(change)}"),
                Cell(change.name, kind="name"),
                Cell(_value(change.name, change.old), kind="extra"),
                Cell(_value(change.name, change.new), narrow=f"before: {_value(change.name, change.old)}"),
                Cell(_author(change), kind="extra"),
            )
            for change in changes
        ],
        total=len(changes),
        empty="No change is recorded.",
    )  # fmt: skip
    remark = f'<p class="soft">{counted(damaged, "history item")} damaged and not shown</p>' if damaged else ""
    warning = f'<p class="wait">{shown(problem)}</p>' if problem is not None else ""
    shown_table = table(content, query) if changes or problem is None else ""
    return section("Latest changes", warning + shown_table + remark)


def _author(change: RecordedChange) -> str:
    return f"{change.principal} ({change.client_id})" if change.client_id else change.principal


def _value(name: str, value: str | None) -> str:
    return "unset" if value is None else value_in_words(name, value) or value or '""'
