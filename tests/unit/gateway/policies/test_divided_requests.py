"""The order of entries in a merged response."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from klamm.gateway.policies.divided_requests import in_order

KEYS = st.lists(st.sampled_from("abcdef"), max_size=12)


def test_entries_follow_the_order_of_the_request() -> None:
    assert in_order(["c", "a", "b"], ["a1", "b1", "c1"], lambda entry: entry[0]) == ["c1", "a1", "b1"]


def test_repeated_key_gets_as_many_entries_as_there_are() -> None:
    assert in_order(["a", "b", "a"], ["a1", "b1"], lambda entry: entry[0]) == ["a1", "b1"]
    assert in_order(["a", "b", "a"], ["a1", "a2", "b1"], lambda entry: entry[0]) == ["a1", "b1", "a2"]


@given(order=KEYS, entries=KEYS)
def test_no_entry_is_lost_or_doubled(order: list[str], entries: list[str]) -> None:
    numbered = [(key, index) for index, key in enumerate(entries)]
    merged = in_order(order, numbered, lambda entry: entry[0])
    assert sorted(merged) == sorted(numbered)
    own_entries = [entry for entry in merged if entry[0] in order]
    places = [order.index(key) for key, _ in own_entries if entries.count(key) <= 1]
    assert places == sorted(places)
