"""Milliseconds formatted in words."""

from __future__ import annotations

import pytest

from klamm.configs.durations import in_words, value_in_words, with_duration


@pytest.mark.parametrize(
    ("milliseconds", "words"),
    [
        (604_800_000, "7 days"),
        (86_400_000, "1 day"),
        (8_640_000, "2 h 24 min"),
        (129_600_000, "1 day 12 h"),
        (90_000, "1 min 30 s"),
        (1_000, "1 s"),
        (999, None),
        (1_001, None),
        (-1, None),
        (90_061_000, None),
        (2**63 - 1, None),
    ],
)
def test_exact_duration_is_formatted_in_words(milliseconds: int, words: str | None) -> None:
    assert in_words(milliseconds) == words


@pytest.mark.parametrize(
    ("name", "value", "shown"),
    [
        ("retention.ms", "604800000", "604800000 (7 days)"),
        ("retention.ms", "-1", "-1"),
        ("retention.ms", "soon", "soon"),
        ("retention.bytes", "604800000", "604800000"),
        ("retention.ms", "9223372036854775807", "9223372036854775807"),
    ],
)
def test_only_configs_in_milliseconds_have_a_duration(name: str, value: str, shown: str) -> None:
    assert with_duration(name, value) == shown


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("retention.ms", "604800000", "7 days"),
        ("retention.ms", "-1", "unlimited"),
        ("retention.bytes", "-1", "unlimited"),
        ("flush.messages", "9223372036854775807", "unlimited"),
        ("segment.bytes", "1073741824", "1 GiB"),
        ("segment.bytes", "1610612736", "1,536 MiB"),
        ("max.message.bytes", "1048588", None),
        ("num.partitions", "-1", None),
        ("cleanup.policy", "delete", None),
    ],
)
def test_value_is_formatted_in_words(name: str, value: str, words: str | None) -> None:
    assert value_in_words(name, value) == words
