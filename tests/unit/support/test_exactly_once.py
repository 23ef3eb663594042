"""Differences between written and mirrored records are named."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from tests.support import exactly_once
from tests.support.exactly_once import RecordsDifferError, assert_exactly_once

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

WRITTEN = {0: [b"a", b"b", b"c", b"d"], 1: [b"e"]}


def reads(*answers: Mapping[int, list[bytes]]) -> Callable[..., Mapping[int, list[bytes]]]:
    left = list(answers)
    return lambda *_, **__: left.pop(0)


@pytest.mark.parametrize(
    ("arrived", "message"),
    [
        ([b"a", b"b", b"d"], "3 records instead of 4; 1 lost or late (#2 b'c')"),
        ([b"a", b"b", b"b", b"c", b"d"], "5 records instead of 4; 1 doubled (#1 b'b')"),
        ([b"a", b"c", b"b", b"d"], "4 records instead of 4; out of order: [0, 2, 1, 3]"),
        ([b"a", b"b", b"c", b"d", b"x"], "5 records instead of 4; 1 strange (b'x')"),
    ],
)
def test_difference_in_records_is_named(arrived: list[bytes], message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    there = {**WRITTEN, 0: arrived}
    monkeypatch.setattr(exactly_once, "read", reads(there, there, WRITTEN))
    with pytest.raises(RecordsDifferError, match=re.escape(message)) as raised:
        assert_exactly_once("here:1", "t", WRITTEN, source=("there:1", "s"))
    assert "t: 1 of 2 partitions differ" in str(raised.value)
    assert "The source:\n  as expected" in str(raised.value)


def test_late_records_are_named_and_fail_the_test(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exactly_once, "read", reads({**WRITTEN, 1: []}, WRITTEN))
    with pytest.raises(RecordsDifferError, match="no difference: it was late"):
        assert_exactly_once("here:1", "t", WRITTEN)
