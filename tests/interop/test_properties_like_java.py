"""Properties text is read exactly as ``java.util.Properties`` reads it."""

from __future__ import annotations

import base64
import random
import subprocess
from typing import TYPE_CHECKING

from klamm.properties import SettingsError, parse_properties
from tests.support.java import java_executable

if TYPE_CHECKING:
    from pathlib import Path

PIECES = ["a", "key", "A->B.x", "=", ":", " ", "\t", "\f", "\\", "\\\\", "\n", "\r\n", "\r", "#", "!", "\\u00e9",
          "\\uD83D", "\\uDE00", "\\u00g", "\\t", "\\n", "\\q", "\\ ", "\\:", "\\=", "\\#", "é", "\0"]  # fmt: skip
PROGRAM = """
import java.io.*; import java.nio.charset.StandardCharsets; import java.util.*;
public class Read {
    static String b(String s) { return Base64.getEncoder().encodeToString(s.getBytes(StandardCharsets.UTF_16BE)); }
    public static void main(String[] args) throws IOException {
        for (String line : new String(System.in.readAllBytes()).split("\\n")) {
            StringBuilder out = new StringBuilder();
            try {
                Properties read = new Properties();
                read.load(new StringReader(new String(Base64.getDecoder().decode(line), StandardCharsets.UTF_8)));
                for (String key : read.stringPropertyNames())
                    out.append(b(key)).append('=').append(b(read.getProperty(key))).append(' ');
            } catch (IllegalArgumentException e) { out.append("rejected"); }
            System.out.println(out.toString().strip());
        }
    }
}
"""


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


def test_two_thousand_texts_are_read_as_java_reads_them(tmp_path: Path) -> None:
    draw = random.Random(894)
    texts = ["".join(draw.choices(PIECES, k=draw.randint(1, 12))) for _ in range(2000)]
    program = tmp_path / "Read.java"
    program.write_text(PROGRAM, encoding="utf-8")
    lines = "\n".join(base64.b64encode(text.encode()).decode() for text in texts)
    ended = subprocess.run(
        [java_executable(), "-XX:TieredStopAtLevel=1", str(program)],
        input=lines,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    # Java's encoder writes U+FFFD for a lone surrogate, as klamm reads it.
    differing = {
        text: (expected, actual)
        for text, expected in zip(texts, ended.stdout.removesuffix("\n").split("\n"), strict=True)
        if (actual := as_java_prints(text)) != " ".join(sorted(expected.split()))
    }
    assert not differing
    assert "rejected" in ended.stdout
