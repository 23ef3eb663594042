"""Argument parsing with the rules of Kafka's tools, and timestamps in ISO 8601 in flags and results.

Each flag may be given once, flags cannot be abbreviated, and a value follows as ``--flag value`` or ``--flag=value``.
"""

from __future__ import annotations

import argparse
import math
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from klamm.cli import version_line
from klamm.cli.profiles import fill_in
from klamm.properties import SettingsError, did_you_mean
from klamm.server.arguments import CommandParser, whole_number

if TYPE_CHECKING:
    from collections.abc import Sequence

TIMEOUT: Final = "api_timeout_ms"
"""Attribute of ``--timeout``: time limit of a call in milliseconds. None without the flag."""
_YEAR_S: Final = 31_536_000
INT16_MAX: Final = 2**15 - 1
INT32_MAX: Final = 2**31 - 1
INT64_MAX: Final = 2**63 - 1


class Once(argparse.Action):
    """Argparse action that stores a value and rejects a repeated flag, as Kafka's tools do."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: str | Sequence[Any] | None,
        option_string: str | None = None,
    ) -> None:
        """Store the value.

        Raises:
            SystemExit: The flag was given before.
        """
        if getattr(namespace, self.dest, None) is not None:
            parser.error(f"{option_string} was given twice")
        setattr(namespace, self.dest, values)


class _ShowVersion(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        parser.exit(message=version_line())


class ToolParser(CommandParser):
    """Argument parser of the commands that resemble Kafka's tools: with ``--version``, and without abbreviations."""

    def __init__(self, *, prog: str, description: str, epilog: str | None = None) -> None:
        super().__init__(
            prog=prog,
            description=description,
            epilog=epilog,
            allow_abbrev=False,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        self.add_argument("--version", action=_ShowVersion, nargs=0, help="show the version")
        self._instead_of_server: tuple[str, ...] | None = None

    def connects(self, instead: Sequence[str] = ()) -> None:
        """Let ``--cluster``, the environment and the user's profiles name the servers.

        Args:
            instead: Options in place of a server. If one is given, only ``--cluster`` counts.
        """
        self._instead_of_server = tuple(instead)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse the flags, and fill in the servers of the chosen cluster."""
        options, rest = super().parse_known_args(args, namespace)
        if self._instead_of_server is not None:
            is_elsewhere = any(getattr(options, name, None) is not None for name in self._instead_of_server)
            try:
                fill_in(options, needs_server=not is_elsewhere)
            except SettingsError as error:
                self.error(str(error))
        return options, rest

    def require_server(self, options: argparse.Namespace) -> None:
        """Reject flags without a server, after the profiles were looked at.

        Raises:
            SystemExit: No server is named.
        """
        if options.bootstrap_server is None:
            self.error("--bootstrap-server must be specified")

    def add_value(self, flag: str, **how: Any) -> None:
        """Add a flag that takes one value and may be given only once."""
        self.add_argument(flag, action=Once, **how)

    def add_switch(self, flag: str, **how: Any) -> None:
        """Add a flag without a value."""
        self.add_argument(flag, action="store_true", **how)


def seconds(text: str, *, may_be_zero: bool = False) -> float:
    """Convert a flag value to a time in seconds, above 0 and at most a year. ``may_be_zero``: 0 is allowed, too."""
    try:
        time_s = float(text)
    except ValueError:
        time_s = math.nan
    if not 0 < time_s <= _YEAR_S and not (may_be_zero and time_s == 0):
        raise argparse.ArgumentTypeError(f"{text!r}: expected a number of seconds above 0 and up to {_YEAR_S:,}")
    return time_s


def add_timeout(parser: argparse.ArgumentParser, text: str) -> None:
    """Add ``--timeout`` with its help text."""
    limit = whole_number(INT32_MAX, lowest=1)
    parser.add_argument("--timeout", action=Once, dest=TIMEOUT, type=limit, metavar="MS", help=text)


def add_common(
    parser: ToolParser,
    *,
    timeout_ms: int | None = 60_000,
    outputs: Sequence[str] = ("human", "json", "yaml"),
    instead: Sequence[str] = (),
    has_cluster: bool = True,
) -> None:
    """Add the flags shared by all commands that connect to a cluster.

    Args:
        parser: Parser of the command.
        timeout_ms: Default of ``--timeout`` that the help shows. None leaves the flag out.
        outputs: Choices of ``--output``.
        instead: Options in place of a server.
        has_cluster: Whether ``--cluster`` is the name of a profile, as ``--profile`` is.
    """
    parser.add_value("--bootstrap-server", metavar="HOST:PORT", help="the servers to connect to, comma separated")
    names = ("--cluster", "--profile") if has_cluster else ("--profile",)
    text = "a cluster of ~/.config/klamm/config.toml, in place of --bootstrap-server and --command-config"
    parser.add_argument(*names, dest="profile", action=Once, metavar="NAME", help=text)
    parser.connects(instead)
    parser.add_value(
        "--command-config", metavar="FILE", help="properties of Kafka's Java admin client, for security and timeouts"
    )
    if timeout_ms is not None:
        add_timeout(parser, f"time limit of each call; default.api.timeout.ms of --command-config, else {timeout_ms}")
    parser.add_argument(
        "-o",
        "--output",
        choices=outputs,
        default="human",
        help="how results are written: human is the text of Kafka's own tools",
    )


def check_conflicts(parser: ToolParser, used_flags: Sequence[str], used: str, others: Sequence[str]) -> None:
    """Reject a flag given together with any of the others, with the message of Kafka's tools.

    Raises:
        SystemExit: The flag and one of the others were given.
    """
    if used not in used_flags:
        return
    for other in others:
        if other in used_flags:
            parser.error(f'Option "[{used}]" can\'t be used with option "[{other}]"')


def unknown_action(prog: str, word: str, actions: Sequence[str]) -> str:
    """Return the message about a first word that is none of the actions of a command."""
    return f"{prog}: unknown action {word!r}: expected one of {', '.join(actions)}{did_you_mean(word, actions)}"


def flags_of(options: argparse.Namespace) -> tuple[str, ...]:
    """Return the names of the flags that were given, as Kafka's messages spell them."""
    return tuple(
        name.replace("_", "-")
        for name, value in vars(options).items()
        if value is not None and value is not False and value != []  # 0 equals False, and is a value
    )


TO_HELP: Final = "ISO 8601, e.g. 2026-11-21T09:30:00Z; UTC without a zone"
"""Help text of flags that take a timestamp."""


def moment_ms(text: str) -> int:
    """Parse a timestamp and return milliseconds since the epoch. A timestamp without a zone is in UTC.

    Raises:
        argparse.ArgumentTypeError: The text is not a timestamp.
    """
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(
            f"{text}: expected a time as in ISO 8601, e.g. 2026-11-21T09:30:00Z"
        ) from error
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return round(moment.timestamp() * 1000)


def searched_ms(at_ms: int) -> int:
    """Return the timestamp by which ListOffsets finds the first record from a time on, which may be before 1970.

    Negative timestamps have other meanings there, such as the latest offset.
    """
    return min(max(at_ms, 0), INT64_MAX)


def shown_moment(at_ms: int) -> str:
    """Format milliseconds since the epoch as ``2026-11-21T09:30:00.000Z``."""
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
