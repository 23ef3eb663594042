"""Parser of the lines that ``klamm produce`` reads (Kafka's LineMessageReader)."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple

from klamm.cli.connection import RequestError
from klamm.lazy_dataclass import dataclass
from klamm.patterns import compile_pattern

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


DEFAULTS: Final = {
    "parse.key": "false",
    "key.separator": "\t",
    "parse.headers": "false",
    "headers.delimiter": "\t",
    "headers.separator": ",",
    "headers.key.separator": ":",
    "ignore.error": "false",
    "null.marker": "",
}
"""Properties of the reader with their defaults. Without a ``null.marker``, no field is null."""

_DISTINCT: Final = (
    ("headers.delimiter", "headers.separator"),
    ("headers.delimiter", "headers.key.separator"),
    ("headers.separator", "headers.key.separator"),
    ("null.marker", "key.separator"),
    ("null.marker", "headers.separator"),
    ("null.marker", "headers.delimiter"),
    ("null.marker", "headers.key.separator"),
)
"""Pairs of properties that must differ."""

_SEPARATORS: Final = (
    ("parse.key", "key.separator"),
    ("parse.headers", "headers.delimiter", "headers.key.separator"),
)
"""Properties that must not be empty, after the one that makes use of them."""


class Line(NamedTuple):
    """One parsed line."""

    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class LineReader:
    """Parser of lines. Bytes that are not UTF-8 arrive as surrogate escapes and leave unchanged."""

    has_key: bool
    key_separator: str
    has_headers: bool
    headers_delimiter: str
    headers_separator: re.Pattern[str]
    headers_key_separator: str
    ignores_errors: bool
    null_marker: str | None

    @classmethod
    def of(cls, properties: Mapping[str, str]) -> LineReader:
        """Return the reader for properties by the names in ``DEFAULTS``; others are ignored, as in Kafka.

        Raises:
            RequestError: Two properties that must differ are equal, a separator is empty, or ``headers.separator`` is
                not a regular expression.
        """
        settings = DEFAULTS | {name: value for name, value in properties.items() if name in DEFAULTS}
        marker = properties.get("null.marker")
        for one, other in _DISTINCT:
            if (one != "null.marker" or marker is not None) and settings[one] == settings[other]:
                raise RequestError(f"{one} and {other} may not be equal")
        for parse, *names in _SEPARATORS:
            if _is_true(settings[parse]) and (empty := next((name for name in names if not settings[name]), None)):
                raise RequestError(f"{empty} may not be empty with {parse}=true")
        try:
            separator = compile_pattern(settings["headers.separator"])
        except re.error as error:
            raise RequestError(f"headers.separator={settings['headers.separator']}: {error}") from error
        return cls(
            has_key=_is_true(settings["parse.key"]),
            key_separator=settings["key.separator"],
            has_headers=_is_true(settings["parse.headers"]),
            headers_delimiter=settings["headers.delimiter"],
            headers_separator=separator,
            headers_key_separator=settings["headers.key.separator"],
            ignores_errors=_is_true(settings["ignore.error"]),
            null_marker=marker,
        )

    def parse(self, line: str, number: int) -> Line:
        """Return the key, the value and the headers of a line.

        Args:
            line: The line without its end.
            number: Number of the line, from 1, for messages.

        Raises:
            RequestError: A separator is missing, or the name of a header is the null marker.
        """
        rest = line
        headers = key = None
        if self.has_headers:
            headers, rest = self._split(line, rest, self.headers_delimiter, f"headers delimiter found on line {number}")
        if self.has_key:
            key, rest = self._split(line, rest, self.key_separator, f"key separator found on line {number}")
        return Line(
            key=self._bytes_of(key),
            value=self._bytes_of(rest),
            headers=[] if headers is None or headers == self.null_marker else self._headers(headers, number),
        )

    def _split(self, line: str, rest: str, separator: str, what: str) -> tuple[str | None, str]:
        before, has_separator, after = rest.partition(separator)
        if has_separator:
            return before, after
        if self.ignores_errors:
            return None, rest
        raise RequestError(f"No {what.replace('on line', 'on line number')}: '{line}'")

    def _headers(self, text: str, number: int) -> list[tuple[str, bytes | None]]:
        return [self._header(pair, number) for pair in _without_empty_end(self.headers_separator.split(text))]

    def _header(self, pair: str, number: int) -> tuple[str, bytes | None]:
        name, separator, value = pair.partition(self.headers_key_separator)
        if not separator:
            if self.ignores_errors:
                return _text(pair), None
            raise RequestError(f"No header key separator found in pair '{pair}' on line number {number}")
        if name == self.null_marker:
            raise RequestError(
                f"Header keys should not be equal to the null marker '{self.null_marker}' as they can't be null"
            )
        return _text(name), self._bytes_of(value)

    def _bytes_of(self, text: str | None) -> bytes | None:
        return None if text is None or text == self.null_marker else text.encode("utf-8", "surrogateescape")


def _is_true(text: str) -> bool:
    return text.strip().lower() == "true"


def _without_empty_end(parts: Sequence[str]) -> list[str]:
    """Return the parts without empty ones at the end, as Java splits a text."""
    kept = list(parts)
    while len(kept) > 1 and not kept[-1]:
        kept.pop()
    return kept


def _text(name: str) -> str:
    """Return the name of a header, which Kafka stores as UTF-8, with replacements for other bytes."""
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
