"""Patterns over names: the same matches as ``re``, in bounded time."""

from __future__ import annotations

import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from klamm.policy.rule import NamePattern

ATOMS = st.sampled_from(["a", "b", "-", "[.]", ".", "[ab]", "[^a]", r"\w", r"\d", "x", "(?i:B)", "^", "$", r"\A"])


def composed(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    suffix = st.sampled_from(["", "*", "+", "?", "*?", "{2}", "{1,3}", "{0,2}?", "{2,}"])
    return st.one_of(
        st.tuples(inner, suffix).map(lambda pair: f"(?:{pair[0]}){pair[1]}"),
        st.tuples(inner, inner).map("".join),
        st.tuples(inner, inner).map(lambda pair: f"({pair[0]}|{pair[1]})"),
    )


@given(
    pattern=st.recursive(ATOMS, composed, max_leaves=8),
    names=st.lists(st.text("abB.-x1", max_size=8), min_size=1, max_size=8),
)
def test_pattern_matches_the_same_names_as_re(pattern: str, names: list[str]) -> None:
    name_pattern = NamePattern(pattern)
    assert name_pattern.is_linear
    compiled = re.compile(pattern, re.ASCII)
    for name in [*names, "", names[0]]:
        assert name_pattern.matches(name) == (compiled.fullmatch(name) is not None)


@pytest.mark.parametrize(
    "pattern", ["(a+)+b", "(a|a)*b", "(a*)*b", ".*.*.*.*.*.*.*b", "(a?){60}a{60}b", "([a-z]+[.]?)+-v[0-9]"]
)
def test_pattern_with_catastrophic_backtracking_matches_in_linear_time(pattern: str) -> None:
    name_pattern = NamePattern(pattern)
    assert name_pattern.is_linear
    before = time.thread_time()
    assert not name_pattern.matches("a" * 249)
    assert time.thread_time() - before < 2, "of years"


@pytest.mark.parametrize(
    ("pattern", "matching", "other"),
    [
        ("orders(?=[.]).*", "orders.x", "orders"),
        (r"(a|b)-\1", "a-a", "a-b"),
        ("(?>a+)b", "aab", "aa"),
        ("a++b", "aab", "aa"),
        (r"a\Z", "a", "b"),
        ("[a-z]{3,2000}", "orders", "or"),
        ("(?:){5000}a", "a", "b"),
    ],
)
def test_pattern_outside_the_linear_subset_falls_back_to_re(pattern: str, matching: str, other: str) -> None:
    name_pattern = NamePattern(pattern)
    assert not name_pattern.is_linear
    assert name_pattern.matches(matching)
    assert not name_pattern.matches(other)


def test_invalid_pattern_is_rejected() -> None:
    with pytest.raises(re.error, match="unterminated"):
        NamePattern("a(")
