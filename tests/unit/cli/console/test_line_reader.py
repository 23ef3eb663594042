"""Lines of klamm produce."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from klamm.cli.connection import RequestError
from klamm.cli.console.line_reader import Line, LineReader

BOTH = {"parse.key": "true", "parse.headers": "true"}


@pytest.mark.parametrize(
    ("properties", "line", "parsed"),
    [
        ({}, "a\tb", Line(None, b"a\tb", [])),
        ({"parse.key": "TRUE "}, "k\tv\tw", Line(b"k", b"v\tw", [])),
        ({"parse.key": "true", "key.separator": "::"}, "k::", Line(b"k", b"", [])),
        (BOTH, "a:1,b:\tk\tv", Line(b"k", b"v", [("a", b"1"), ("b", b"")])),
        (BOTH | {"null.marker": "N"}, "N\tN\tN", Line(None, None, [])),
        (BOTH | {"null.marker": "N"}, "a:N\tk\tv", Line(b"k", b"v", [("a", None)])),
        (BOTH | {"headers.separator": "[;|]"}, "a:1;b:2|\tk\tv", Line(b"k", b"v", [("a", b"1"), ("b", b"2")])),
        (BOTH | {"ignore.error": "true"}, "alone", Line(None, b"alone", [])),
        (BOTH | {"ignore.error": "true"}, "h\tk\tv", Line(b"k", b"v", [("h", None)])),
    ],
)
def test_line_is_split_by_properties(properties: dict[str, str], line: str, parsed: Line) -> None:
    assert LineReader.of(properties).parse(line, 1) == parsed


@pytest.mark.parametrize(
    ("properties", "line", "message"),
    [
        (BOTH, "x", "No headers delimiter found on line number 7: 'x'"),
        (BOTH, "a:1\tx", "No key separator found on line number 7"),
        (BOTH, "a\tk\tv", "No header key separator found in pair 'a' on line number 7"),
        (BOTH | {"null.marker": "N"}, "N:1\tk\tv", "Header keys should not be equal to the null marker 'N'"),
    ],
)
def test_line_without_separator_is_rejected(properties: dict[str, str], line: str, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        LineReader.of(properties).parse(line, 7)


@pytest.mark.parametrize(
    "properties",
    [{"headers.separator": ":"}, {"null.marker": "\t"}, {"headers.separator": "["}, {"headers.delimiter": ","}],
)
def test_ambiguous_separators_are_rejected(properties: dict[str, str]) -> None:
    with pytest.raises(RequestError, match=r"may not be equal|headers\.separator=\["):
        LineReader.of(properties)


@pytest.mark.parametrize(
    ("parse", "separator"),
    [
        ("parse.key", "key.separator"),
        ("parse.headers", "headers.delimiter"),
        ("parse.headers", "headers.key.separator"),
    ],
)
def test_empty_separator_is_rejected_if_it_is_used(parse: str, separator: str) -> None:
    with pytest.raises(RequestError, match=f"{separator} may not be empty with {parse}=true"):
        LineReader.of({parse: "true", separator: ""}).parse("a", 1)
    assert LineReader.of({separator: ""}).parse("a", 1) == Line(None, b"a", [])


@given(st.binary().filter(lambda content: b"\n" not in content and b"\r" not in content))
def test_any_bytes_are_kept(content: bytes) -> None:
    assert LineReader.of({}).parse(content.decode("utf-8", "surrogateescape"), 1).value == content
