"""Regular expressions in Java's syntax match what ``java.util.regex`` matches, or are rejected."""

from __future__ import annotations

import base64
import os
import random
import re

from klamm.patterns import java_pattern
from tests.support.kafka_tools import run_tool

PIECES = [
    "a", "b", "Z", "9", "_", "-", ".", "é", "٣", " ", "\n", "|", "*", "+", "?", "{2}", "{1,}", "{", "}", "(",
    ")", "(?:", "(?=", "(?!", "(?<n>", "\\k<n>", "\\1", "(?i)", "(?-i)", "(?i:", "(?s)", "(?P<n>", "(?#", "(?>",
    "++", "*?", "[",
    "]", "[^", "[a-c", "&", "&&", "-", "^", "$", "\\", "\\d", "\\D", "\\w", "\\W", "\\s", "\\S", "\\h", "\\H", "\\v",
    "\\V", "\\z", "\\Z", "\\A", "\\b", "\\R", "\\p{Alpha}", "\\p{Punct}", "\\p{L}", "\\P{Lower}", "\\P{Space}", "\\pL",
    "\\Q", "\\E", "\\Qa.\\E", "\\x41", "\\x{61}", "\\u0062", "\\011", "\\cA", "\\e", "\\t", "\\N", "\\.", "\\-", "\\é",
    "[\\w-.]", "[]a]", "[a&b]", "[--9]", "#", "~~", "||", ",",
]  # fmt: skip
TEXTS = ["", "a", "b", "A", "Z", "9", "_", "-", ".", "é", "٣", " ", "\n", "\r", "\t", "\x01", "aa", "ab", "aé", "a.",
         "a-", "a\n", "a\r\n", "Z9", "aab", "{", "}", "a&", "[", "]", "#", "~", "|", "\\", "a_9", "b.-", "É", "K",
         "\x1b", "&"]  # fmt: skip


def encoded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def matches(expression: str) -> str:
    try:
        pattern = java_pattern(expression)
    except re.error:
        return "rejected"
    return "".join("1" if pattern.fullmatch(text) else "0" for text in TEXTS)


def is_of_newer_java(expression: str) -> bool:
    """Return whether an expression has a word boundary, which is one of ASCII since Java 19 only, as here."""
    return "\\b" in expression


def test_patterns_match_as_in_java_or_are_rejected(java: None) -> None:
    draw = random.Random(894)
    count = 200_000 if os.environ.get("KLAMM_SOAK") else 3_000
    expressions = PIECES + ["".join(draw.choices(PIECES, k=draw.randint(1, 7))) for _ in range(count)]
    lines = [" ".join(map(encoded, TEXTS)), *map(encoded, expressions)]
    printed = run_tool("MatchPatterns", stdin="\n".join(lines))
    expected = dict(zip(expressions, printed.removesuffix("\n").split("\n"), strict=True))
    accepted = {expression for expression in expressions if matches(expression) != "rejected"}
    differing = {each: actual for each in accepted if (actual := matches(each)) != expected[each]}
    assert not {each: (expected[each], actual) for each, actual in differing.items() if not is_of_newer_java(each)}
    assert len(accepted) > 0.6 * sum(result != "rejected" for result in expected.values())
