"""Regular expressions from users."""

from __future__ import annotations

import re

import pytest

from klamm.cli.connection import RequestError
from klamm.cli.topics.names import parse_pattern
from klamm.mirror.filters import PatternList
from klamm.patterns import PatternError, compile_pattern, full_matcher, java_pattern
from klamm.properties import SettingsError

TOO_MUCH = ["a{99999999999}", "(" * 5000 + ")" * 5000]


@pytest.mark.parametrize("expression", [*TOO_MUCH, "(", "a**"])
def test_invalid_expression_raises_re_error(expression: str) -> None:
    with pytest.raises(re.error):
        compile_pattern(expression)


@pytest.mark.parametrize("expression", TOO_MUCH)
def test_expression_too_complex_for_python_is_rejected(expression: str) -> None:
    with pytest.raises(RequestError, match="is an invalid regex"):
        parse_pattern(expression)
    with pytest.raises(SettingsError, match="expected a list of regular expressions"):
        PatternList.compile("topics", (expression,))


@pytest.mark.parametrize(
    ("expression", "matching", "other"),
    [
        (r"\p{Alpha}+-\p{Digit}", "ab-1", "é-1"),
        (r"[\w-.]+", "a-b.c", "a b"),
        (r"\d", "1", "٣"),
        (r"a\Q.*\E", "a.*", "abc"),
        (r"a\z", "a", "ab"),
        ("(?<x>a)b\\k<x>", "aba", "abb"),
        ("a|(?i)b|c", "C", "A"),
        (r"\h[\h]", "\u2003\t", "\n\n"),
    ],
)
def test_java_regex_constructs_are_translated_to_re2(expression: str, matching: str, other: str) -> None:
    pattern = java_pattern(expression)
    assert pattern.fullmatch(matching)
    assert not pattern.fullmatch(other)


@pytest.mark.parametrize(
    "expression",
    [*TOO_MUCH, "[a-z&&[^b]]", "[a[b]]", r"\p{L}", r"\R", "a{,2}", "{", "(?P<x>a)", "a(?i)b", r"[\b]", r"\y"],
)
def test_constructs_with_other_meaning_in_python_are_rejected(expression: str) -> None:
    with pytest.raises(re.error):
        java_pattern(expression)


@pytest.mark.parametrize(
    "pattern",
    [
        r"\pL" * 10_000,
        r"\P{Greek}" * 60,
        r"[a\pL]" * 60,
        r"(?:\pL){60}",
        r"\pL{60}",
        r"\P{^Greek}{60}",
        r"[\pL]{60}",
        "a?" * 16_000,
        "(?:(?i)a??b?){1000}",
        "(?P<name>a|){1000}" * 5,
        "a{1000}" * 4_000,
        "x{0,999}" * 11,
        "(?:(?:(?:a{0,10}){0,10}){0,10}){2,}",
        "[[:alpha:]]{1000}" * 5,
        "[]a]{1000}" * 5,
        ".*a" * 4_000,
        "(" * 8_000 + "a?" * 2_000,
    ],
)
def test_complex_pattern_of_a_client_is_rejected_before_it_is_compiled(pattern: str) -> None:
    """RE2 takes up to seconds for one, in which the broker serves nobody."""
    with pytest.raises(PatternError, match="it is too complex"):
        full_matcher(pattern, is_from_client=True)


@pytest.mark.parametrize("pattern", ["[[:alpha:]" * 3_000, "[" * 32_000, r"\Q" * 16_000, ")" * 32_000, "(?" * 16_000])
def test_damaged_pattern_of_a_client_is_rejected(pattern: str) -> None:
    with pytest.raises(PatternError):
        full_matcher(pattern, is_from_client=True)


@pytest.mark.parametrize(
    ("pattern", "matching"),
    [
        (r"[a-z]{1,249}\.(?:[[:alnum:]_-]{1,200})?", "orders.eu-west"),
        (r"(?i)(?P<team>\pL{1,10})\Q.(\E.{0,100}", "Team.(x"),
        ("(((a{10}){10}){10})?", "a" * 1000),
    ],
)
def test_client_may_limit_the_lengths_of_parts_in_a_pattern(pattern: str, matching: str) -> None:
    assert full_matcher(pattern, is_from_client=True)(matching)


def test_client_may_list_a_thousand_topics_in_a_pattern() -> None:
    matches = full_matcher("|".join(f"topic-{number:06}-of-team" for number in range(1_000)), is_from_client=True)
    assert matches("topic-000999-of-team")
    assert not matches("topic-001000-of-team")
