"""Java ``.properties`` text, as ``java.util.Properties`` parses it, and the addresses in it."""

from __future__ import annotations

import re
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path


class SettingsError(Exception):
    """A setting is invalid. The message names the key, the value and the allowed values."""


_ESCAPES: Final = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_BLANK: Final = " \t\f"
_UNICODE_DIGITS: Final = 4
_NOT_IN_HOSTS: Final = re.compile(r"[\s\[\]]")
_MAX_PORT: Final = 65_535
_SCHEME: Final = re.compile(r"^[a-zA-Z0-9%._-]*://")


def parse_properties(text: str) -> dict[str, str]:
    r"""Return keys and values in file order. The last value of a duplicate key wins.

    Raises:
        SettingsError: A ``\u`` escape lacks four hexadecimal digits.
    """
    return dict(_split(line) for line in _logical_lines(text))


def file_error(error: Exception) -> str:
    """Return why a file cannot be used, without the number and the path that the text of an OSError has.

    The text has no byte of the file, which may be a secret or any file that a remote user names.
    """
    if isinstance(error, UnicodeDecodeError):
        return f"the byte at offset {error.start} is not UTF-8"
    return getattr(error, "strerror", None) or str(error)


def read_properties(path: Path) -> dict[str, str]:
    r"""Read a properties file in UTF-8, or in Latin-1 if it is not valid UTF-8.

    Kafka reads every file as Latin-1. Valid UTF-8 is nearly always meant as UTF-8, because Latin-1 text seldom contains
    a valid sequence by chance. Non-ASCII values may therefore differ from Kafka's reading; ``\u`` escapes never do.

    Raises:
        SettingsError: The file cannot be read, or is not properties text. The message begins with the path.
    """
    try:
        return parse_properties(_decode(path.read_bytes()))
    except SettingsError as error:
        raise SettingsError(f"{path}: {error}") from error
    except OSError as error:
        raise SettingsError(f"{path}: cannot be read: {file_error(error)}") from error


def merged_properties(
    path: Path | None, assignments: Iterable[str], flags: Mapping[str, str] = MappingProxyType({})
) -> dict[str, str]:
    """Return the settings of a command: those of its properties file and of its flags ``--set``, which outrank it.

    Args:
        path: The properties file, if there is one.
        assignments: Values of ``--set``, each of the form KEY=VALUE.
        flags: Flags on the command line that set a config of their own, by the name of the config.

    Raises:
        SettingsError: The file cannot be read or is not properties text, a flag has another form, or a config is set
            by two flags, of which one would have no effect.
    """
    settings = {} if path is None else read_properties(path)
    for assignment in assignments:
        name, equals, value = (part.strip() for part in assignment.partition("="))
        if not equals or not name:
            raise SettingsError(f"--set {assignment!r}: expected KEY=VALUE")
        if name in flags:
            raise SettingsError(f"--set {name}={value}: {flags[name]} sets this config, too; give only one of them")
        settings[name] = value
    return settings


def _decode(content: bytes) -> str:
    try:
        return content.decode("utf-8-sig")  # some editors write a byte order mark
    except UnicodeDecodeError:
        return content.decode("latin-1")


def did_you_mean(name: str, names: Iterable[str], *, cutoff: float = 0.6) -> str:
    """Return ``; did you mean NAME?`` for the most similar known name, an empty string if none is similar.

    Args:
        name: Unknown name.
        names: Names to choose from.
        cutoff: Least similarity, from 0 to 1 (``difflib.get_close_matches``).
    """
    from difflib import get_close_matches  # noqa: PLC0415  # needed only after a mistake

    by_folded = {each.casefold(): each for each in names}
    close = get_close_matches(name.casefold(), by_folded, n=1, cutoff=cutoff)
    return f"; did you mean {by_folded[close[0]]}?" if close else ""


def with_prefix(properties: Mapping[str, str], prefix: str) -> dict[str, str]:
    """Return the entries whose keys start with ``prefix``, without the prefix."""
    return {key[len(prefix) :]: value for key, value in properties.items() if key.startswith(prefix)}


def _logical_lines(text: str) -> Iterator[str]:
    """Yield lines joined over trailing backslashes, without comments and blank lines."""
    held = ""
    continued = False
    for raw in re.split(r"\r\n|\n|\r", text):
        line = raw.lstrip(_BLANK)
        if not held and (not line or line[0] in "#!"):
            continued = False
            continue
        backslashes = len(line) - len(line.rstrip("\\"))
        continued = backslashes % 2 == 1
        held += line[:-1] if continued else line
        if not continued and held:
            yield held
            held = ""
    if held or continued:
        yield held


def _split(line: str) -> tuple[str, str]:
    end = 0
    while end < len(line) and line[end] not in "=:" + _BLANK:
        end += 2 if line[end] == "\\" else 1
    rest = line[end:].lstrip(_BLANK)
    if rest[:1] in ("=", ":"):
        rest = rest[1:].lstrip(_BLANK)
    return _unescape(line[:end]), _unescape(rest)


def _unescape(text: str) -> str:
    if "\\" not in text:
        return text
    out: list[str] = []
    at = 0
    while at < len(text):
        if text[at] != "\\" or at + 1 == len(text):
            out.append(text[at])
            at += 1
        elif text[at + 1] == "u":
            out.append(_unicode(text[at + 2 : at + 2 + _UNICODE_DIGITS]))
            at += 2 + _UNICODE_DIGITS
        else:
            out.append(_ESCAPES.get(text[at + 1], text[at + 1]))
            at += 2
    # Escapes are UTF-16 code units. A pair of surrogates is one character. A lone one becomes U+FFFD, because no
    # encoder accepts it.
    return "".join(out).encode("utf-16-be", "surrogatepass").decode("utf-16-be", "replace")


def _unicode(digits: str) -> str:
    if len(digits) != _UNICODE_DIGITS or not all(digit in "0123456789abcdefABCDEF" for digit in digits):
        raise SettingsError(f"\\u{digits}: expected four hexadecimal digits")
    return chr(int(digits, 16))


def parse_int(key: str, value: str, *, at_least: int, at_most: int = 2**31 - 1) -> int:
    """Parse an integer within limits.

    Raises:
        SettingsError: The text is not an integer or out of range.
    """
    try:
        number = at_least - 1 if "_" in value else int(value.strip())
    except ValueError:
        number = at_least - 1
    if not at_least <= number <= at_most:
        raise SettingsError(f"{key}={value}: expected a whole number from {at_least} to {at_most}")
    return number


def parse_bool(key: str, value: str) -> bool:
    """Parse ``true`` or ``false``, ignoring the case as Kafka does.

    Raises:
        SettingsError: The value is neither.
    """
    match value.strip().lower():
        case "true":
            return True
        case "false":
            return False
        case _:
            raise SettingsError(f"{key}={value}: expected true or false")


def parse_list(value: str) -> tuple[str, ...]:
    """Split a comma-separated list. Blanks around elements and empty elements are removed."""
    return tuple(element for part in value.split(",") if (element := part.strip()))


def split_servers(servers: str | Iterable[str]) -> tuple[str, ...]:
    """Return bootstrap servers, or a comma-separated list of them, as ``host:port`` each.

    As in Kafka's clients, a server may be written as ``PLAINTEXT://host:port``, and the part before the host is
    ignored.
    """
    addresses = parse_list(servers) if isinstance(servers, str) else filter(None, map(str.strip, servers))
    return tuple(_SCHEME.sub("", server) for server in addresses)


def split_address(text: str) -> tuple[str, int] | None:
    """Return host and port of ``host:port``, IPv6 without its brackets. None means that it is not an address."""
    host, _, port = text.strip().rpartition(":")
    host = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    if not host or _NOT_IN_HOSTS.search(host) or not re.fullmatch("[0-9]{1,5}", port) or int(port) > _MAX_PORT:
        return None
    return host, int(port)
