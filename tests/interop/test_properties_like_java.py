"""Properties text is read exactly as ``java.util.Properties`` reads it."""

from __future__ import annotations

import base64
import random

from klamm.properties import SettingsError, parse_properties
from tests.support.kafka_tools import run_tool

PIECES = ["a", "key", "A->B.x", "=", ":", " ", "\t", "\f", "\\", "\\\\", "\n", "\r\n", "\r", "#", "!", "\\u00e9",
          "\\uD83D", "\\uDE00", "\\u00g", "\\t", "\\n", "\\q", "\\ ", "\\:", "\\=", "\\#", "é", "\0"]  # fmt: skip


def encoded(text: str) -> str:
    return base64.b64encode(text.encode("utf-16-be")).decode()


def as_java_prints(text: str) -> str:
    try:
        properties = parse_properties(text)
    except SettingsError:
        return "rejected"
    return " ".join(sorted(f"{encoded(key)}={encoded(value)}" for key, value in properties.items()))


def test_surrogate_pair_is_one_character() -> None:
    assert parse_properties("a=\\uD83D\\uDE00\\uD83D") == {"a": "\U0001f600\ufffd"}


def test_two_thousand_texts_are_read_as_java_reads_them(java: None) -> None:
    draw = random.Random(894)
    texts = ["".join(draw.choices(PIECES, k=draw.randint(1, 12))) for _ in range(2000)]
    lines = "\n".join(base64.b64encode(text.encode()).decode() for text in texts)
    printed = run_tool("ReadProperties", stdin=lines)
    # Java's encoder writes U+FFFD for a lone surrogate, as klamm reads it.
    differing = {
        text: (expected, actual)
        for text, expected in zip(texts, printed.removesuffix("\n").split("\n"), strict=True)
        if (actual := as_java_prints(text)) != " ".join(sorted(expected.split()))
    }
    assert not differing
    assert "rejected" in printed
