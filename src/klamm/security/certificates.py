"""Names in X.509 certificates, written as Kafka writes principals (RFC 2253), and ``ssl.principal.mapping.rules``.

Includes a reader for ASN.1 in DER encoding, as far as certificates and keys need it (X.690).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from klamm.lazy_dataclass import dataclass
from klamm.patterns import compile_pattern
from klamm.properties import SettingsError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_SHORT_LENGTH: Final = 0x80
_KEYWORDS: Final = {
    "2.5.4.3": "CN",
    "2.5.4.6": "C",
    "2.5.4.7": "L",
    "2.5.4.8": "ST",
    "2.5.4.9": "STREET",
    "2.5.4.10": "O",
    "2.5.4.11": "OU",
    "0.9.2342.19200300.100.1.25": "DC",
    "0.9.2342.19200300.100.1.1": "UID",
}
"""Attributes that RFC 2253 names. All others are written as object identifier and hex value."""
_STRINGS: Final = frozenset({0x0C, 0x13, 0x14, 0x16, 0x1B, 0x1E})
"""Tags of the values that Java writes as text: UTF8, Printable, T61, IA5, General and BMP strings. All others, Numeric,
Visible and Universal strings too, are written as hex values.
"""
_VERSION_TAG: Final = 0xA0
_EXTENSIONS_TAG: Final = 0xA3
_ALTERNATIVE_NAMES: Final = "2.5.29.17"
_BEFORE_SUBJECT: Final = 4
"""Fields before the subject: serial number, signature algorithm, issuer, validity."""
_SPECIAL: Final = re.compile(r'([,=+<>#;"\\])')
_EDGES: Final = re.compile(r"\A[ \r]+|[ \r]+\Z")
_SURROGATE: Final = re.compile(rb"\xed[\xa0-\xbf][\x80-\xbf]?")


class DerError(ValueError):
    """The bytes are not valid DER."""


def values(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield tag and content of each value in ``data``.

    Raises:
        DerError: A value does not end within the data.
    """
    position = 0
    while position < len(data):
        try:
            tag, length = data[position], data[position + 1]
        except IndexError as error:
            raise DerError("A value ends after its tag") from error
        position += 2
        if length >= _SHORT_LENGTH:
            size = length - _SHORT_LENGTH
            length = int.from_bytes(data[position : position + size])
            position += size
        if position + length > len(data):
            raise DerError("A value is longer than its container")
        yield tag, data[position : position + length]
        position += length


def encoded(tag: int, value: bytes) -> bytes:
    """Return a value encoded with its tag and length."""
    if len(value) < _SHORT_LENGTH:
        return bytes([tag, len(value)]) + value
    size = len(value).to_bytes((len(value).bit_length() + 7) // 8)
    return bytes([tag, _SHORT_LENGTH + len(size)]) + size + value


def dotted(oid: bytes) -> str:
    """Return an object identifier as text like ``2.5.4.3``."""
    numbers, current = [], 0
    for byte in oid:
        current = current << 7 | byte & 0x7F
        if not byte & 0x80:
            numbers.append(current)
            current = 0
    first = min(numbers[0] // 40, 2)
    return ".".join(map(str, (first, numbers[0] - 40 * first, *numbers[1:])))


class CertificateError(ValueError):
    """The bytes are not an X.509 certificate."""


def subject_of(certificate: bytes) -> str:
    """Return the subject of a DER certificate as RFC 2253 text, the most specific attribute first.

    Raises:
        CertificateError: The bytes are not a certificate.
    """
    try:
        fields = [value for tag, value in _fields(certificate) if tag != _VERSION_TAG]
        names = [_relative_name(value) for _, value in values(fields[_BEFORE_SUBJECT])]
    except (IndexError, ValueError) as error:
        raise CertificateError("The peer's certificate cannot be read") from error
    return ",".join(reversed(names))


def alternative_names_of(certificate: bytes) -> frozenset[tuple[int, bytes]]:
    """Return kind and value of each name in the ``subjectAltName`` of a DER certificate.

    Raises:
        CertificateError: The bytes are not a certificate.
    """
    try:
        for tag, value in _fields(certificate):
            if tag == _EXTENSIONS_TAG:
                (_, extensions), *_ = values(value)
                for _, extension in values(extensions):
                    (_, oid), *_, (_, content) = values(extension)
                    if dotted(oid) == _ALTERNATIVE_NAMES:
                        (_, names), *_ = values(content)
                        return frozenset(values(names))
    except (IndexError, ValueError) as error:
        raise CertificateError("The certificate cannot be read") from error
    return frozenset()


def _fields(certificate: bytes) -> list[tuple[int, bytes]]:
    """Return the fields of the signed part of a certificate."""
    (_, body), *_ = values(certificate)
    (_, to_be_signed), *_ = values(body)
    return list(values(to_be_signed))


def _relative_name(attributes: bytes) -> str:
    parts = []
    for _, attribute in values(attributes):
        (_, oid), (tag, value) = list(values(attribute))
        number = dotted(oid)
        keyword = _KEYWORDS.get(number)
        is_text = keyword is not None and tag in _STRINGS
        shown = _escaped(_text(value)) if is_text else f"#{encoded(tag, value).hex()}"
        parts.append(f"{keyword or number}={shown}")
    return "+".join(parts)


def _text(value: bytes) -> str:
    """Decode a string as Java does: as UTF-8, of whatever kind it is, with one U+FFFD for half a surrogate pair."""
    return _SURROGATE.sub(b"\xff", value).decode(errors="replace")


def _escaped(text: str) -> str:
    """Escape a value as Java does (``X500Principal.getName``): ``#`` everywhere, and every space at either end."""
    text = _SPECIAL.sub(r"\\\1", text).replace("\0", "\\00")
    return _EDGES.sub(lambda edge: "".join(f"\\{blank}" for blank in edge[0]), text)


@dataclass(frozen=True, slots=True, kw_only=True)
class MappingRule:
    """One of ``ssl.principal.mapping.rules``."""

    pattern: re.Pattern[str] | None
    """Pattern for the subject. None is the rule DEFAULT, which keeps the subject as it is."""
    replacement: tuple[str | int, ...] = ()
    """Parts of the name: literal text, or the number of a group in the pattern."""
    case: str = ""
    """Case of the result: ``L`` for lower, ``U`` for upper, empty to keep it."""

    def apply(self, subject: str) -> str | None:
        """Return the user name of a subject; None if the rule does not match it."""
        if self.pattern is None:
            return subject
        if self.pattern.fullmatch(subject) is None:
            return None
        # Like Kafka, this replaces every match. An expression such as (.*) also matches the empty end.
        name = self.pattern.sub(self._expand, subject)
        return name.lower() if self.case == "L" else name.upper() if self.case == "U" else name

    def _expand(self, match: re.Match[str]) -> str:
        return "".join(part if isinstance(part, str) else match[part] or "" for part in self.replacement)


_RULE: Final = re.compile(
    r"\s*(?:(?P<default>DEFAULT)"
    r"|RULE:(?P<pattern>(?:\\.|[^\\/])*)/(?P<new>(?:\\.|[^\\/])*)/(?P<case>[LU]?))\s*(?:,|$)"
)


_REPLACEMENT_PART: Final = re.compile(r"\\(?P<quoted>.)|\$(?P<digits>[0-9]+)|\$|[^$\\]+", re.DOTALL)


def parse_mapping_rules(text: str | None) -> tuple[MappingRule, ...]:
    """Parse ``ssl.principal.mapping.rules``. None and the empty string mean DEFAULT.

    Raises:
        SettingsError: A rule has a syntax error.
    """
    text = (text or "").strip() or "DEFAULT"
    rules, position = [], 0
    while position < len(text):
        match = _RULE.match(text, position)
        if match is None:
            raise SettingsError(
                f"ssl.principal.mapping.rules: {text[position:]!r}: expected DEFAULT or RULE:pattern/replacement/[LU]"
            )
        position = match.end()
        try:
            pattern = None if match["default"] else compile_pattern(match["pattern"])
        except re.error as error:
            raise SettingsError(f"ssl.principal.mapping.rules: {match['pattern']!r}: {error}") from error
        replacement = () if pattern is None else tuple(_replacement(match["new"], pattern.groups))
        rules.append(MappingRule(pattern=pattern, replacement=replacement, case=match["case"] or ""))
    return tuple(rules)


def _replacement(text: str, groups: int) -> Iterator[str | int]:
    """Yield the parts of a replacement in Java's syntax: a backslash quotes, and ``$1`` is the text of a group.

    As in Kafka, the number of a group has as many digits as there are groups, and ``$9`` is plain text if there are
    groups but fewer than nine.

    Raises:
        SettingsError: A reference to a group cannot be one. Kafka would reject every certificate.
    """
    for match in _REPLACEMENT_PART.finditer(text):
        if match["digits"] is None:
            if match[0] == "$":
                raise SettingsError(f"ssl.principal.mapping.rules: {text!r}: expected the number of a group after $")
            yield match["quoted"] or match[0]
            continue
        digits = match["digits"]
        length = next((size for size in range(min(len(digits), 4), 0, -1) if int(digits[:size]) <= groups), 0)
        if not length and not groups:
            raise SettingsError(f"ssl.principal.mapping.rules: {text!r}: the pattern has no group {digits}")
        if length:
            yield int(digits[:length])
            yield digits[length:]
        else:
            yield match[0]


def map_subject(subject: str, rules: Sequence[MappingRule]) -> str | None:
    """Return the user name by the first rule that matches the subject.

    None means that no rule matches. The connection is then rejected.
    """
    names = (rule.apply(subject) for rule in rules)
    return next((name for name in names if name is not None), None)
