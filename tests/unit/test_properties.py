from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from klamm.properties import SettingsError, parse_properties, read_properties, split_address, split_servers

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a=1\nb = 2\nc: 3\nd 4\n", {"a": "1", "b": "2", "c": "3", "d": "4"}),
        ("# comment\n! comment\n\n  a = x = y \n", {"a": "x = y "}),
        ("topics = a,\\\n    b\n", {"topics": "a,b"}),
        ("a\\ b\\:c=1\n", {"a b:c": "1"}),
        ("path=c:\\\\x\\ty\n", {"path": "c:\\x\ty"}),
        ("a=\\u00e9\n", {"a": "é"}),
        ("A->B.enabled = true", {"A->B.enabled": "true"}),
        ("empty=\nalone\n", {"empty": "", "alone": ""}),
        ("a=1\r\na=2\r\n", {"a": "2"}),
        ("a=end\\", {"a": "end"}),
        ("r=.*\\\\.replica", {"r": ".*\\.replica"}),
    ],
)
def test_text_is_read_as_java_reads_it(text: str, expected: dict[str, str]) -> None:
    """K894-26: blanks around = are allowed."""
    assert parse_properties(text) == expected


def test_invalid_unicode_escape_is_rejected() -> None:
    with pytest.raises(SettingsError, match="four hexadecimal digits"):
        parse_properties("a=\\u00zz")


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"password=caf\xe9", "caf\u00e9"),
        (b"password=caf\xc3\xa9", "caf\u00e9"),
        (b"password=caf\xe9 \xc3\xa9", "caf\u00e9 \u00c3\u00a9"),
        (b"password=caf\\u00e9", "caf\u00e9"),
    ],
    ids=["Latin-1, as Java", "UTF-8", "not all of it UTF-8", "escaped"],
)
def test_properties_file_is_utf_8_or_latin_1(content: bytes, expected: str, tmp_path: Path) -> None:
    file = tmp_path / "mm2.properties"
    file.write_bytes(content)
    assert read_properties(file) == {"password": expected}


def test_missing_properties_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"none\.properties: cannot be read: No such file"):
        read_properties(tmp_path / "none.properties")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a.example.org:9092", ("a.example.org", 9092)),
        (" 127.0.0.1:0 ", ("127.0.0.1", 0)),
        ("[::1]:65535", ("::1", 65_535)),
        ("a:65536", None),
        ("a:-1", None),
        ("a:\u00b2", None),
        (":9092", None),
        ("nothing", None),
        ("", None),
    ],
)
def test_address_is_host_and_port(text: str, expected: tuple[str, int] | None) -> None:
    assert split_address(text) == expected


@pytest.mark.parametrize(
    ("text", "servers"),
    [
        ("a:1", ("a:1",)),
        (" a:1 ,, [::1]:2,", ("a:1", "[::1]:2")),
        ("PLAINTEXT://a:1,SASL_SSL://[::1]:2, ://b:3", ("a:1", "[::1]:2", "b:3")),
        ("", ()),
    ],
)
def test_bootstrap_servers_may_have_a_scheme(text: str, servers: tuple[str, ...]) -> None:
    assert split_servers(text) == servers


def test_invalid_escape_error_names_the_file(tmp_path: Path) -> None:
    (file := tmp_path / "odd.properties").write_text("a=\\u00g\n")
    with pytest.raises(SettingsError, match=f"^{file}: "):
        read_properties(file)
