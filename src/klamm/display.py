"""Safe display of names and values that clients choose, in output for people and in logs."""

from __future__ import annotations

import logging
import sys
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from types import TracebackType

LOG_LINE: Final = "%(asctime)s %(levelname)s %(name)s: %(message)s"

MAX_SHOWN: Final = 64
"""Limit for a displayed name in characters. A longer name would make a table unreadable."""

_MAX_LINE: Final = 2000


def escaped(text: str) -> str:
    r"""Escape characters that would move a terminal's cursor or start a new line, such as ``\x1b`` and ``\n``.

    A backslash stays unchanged, so that a pattern is displayed as it was written. JSON and YAML output is not escaped.
    """
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)


def one_line(message: str) -> str:
    """Return a message as one line. A longer one than 2,000 characters, which quotes a huge value, lacks its middle."""
    line = escaped(" ".join(message.split("\n")))
    if len(line) <= _MAX_LINE:
        return line
    left_out = len(line) - _MAX_LINE
    return f"{line[: _MAX_LINE // 2]}... ({left_out:,} characters left out) ...{line[-(_MAX_LINE // 2) :]}"


def printable(name: str) -> str:
    """Return a name escaped, and truncated if it is too long. JSON and Parquet output keeps names unchanged."""
    plain = escaped(name[:MAX_SHOWN])
    return plain if len(name) <= MAX_SHOWN else f"{plain}..."


class LineFormatter(logging.Formatter):
    """Formatter of log records. A client id or a topic name can neither begin a line nor move a terminal's cursor.

    A record is one line. The lines of a traceback follow, and are indented: an exception may quote a name.
    """

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - the name is that of logging
        """Return the line of a record, escaped."""
        return escaped(super().formatMessage(record))

    def formatException(  # noqa: N802
        self, ei: tuple[type[BaseException], BaseException, TracebackType | None] | tuple[None, None, None]
    ) -> str:
        """Return a traceback, escaped and indented."""
        return "\n".join(f"  {escaped(line)}" for line in super().formatException(ei).split("\n"))


def log_to_stderr(line: str = LOG_LINE, *, level: int = logging.INFO) -> None:
    """Configure the logging of a process, unless that has been done.

    Args:
        line: Layout of a line.
        level: Lowest level that is logged.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(LineFormatter(line))
    logging.basicConfig(level=level, handlers=[handler])


def counted(count: int, noun: str) -> str:
    """Return a count with its noun, such as ``1 partition`` or ``2,000 partitions``."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"
