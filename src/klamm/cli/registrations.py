"""Command ``klamm registrations report``: support of each dynamic config by client version."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from klamm.cli.arguments import ToolParser, add_common, add_timeout, seconds
from klamm.cli.clients import fetch
from klamm.cli.connection import RequestError, connect, guarded, read_client_properties
from klamm.client_configs.definitions import ClientKind
from klamm.extras import require_extra
from klamm.java import JavaNotFoundError
from klamm.security.principals import user_name

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Sequence

    from klamm.cli.clients import Client
    from klamm.registration_report.report import Sighting

_REACH_TIMEOUT_MS: Final = 15_000
_OWN_CLIENT_IDS: Final = frozenset({"klamm-admin", "klamm-mirror-admin", "klamm-policy-test", "klamm-status"})
_OWN_SOFTWARE: Final = "klamm"
"""Software name of the report's own data connections. Connections of the mirror have the same name."""


def main(arguments: Sequence[str]) -> int:
    """Print the report.

    Return 0 on success, and 1 if the cluster does not answer, Java is missing or a setting is invalid.
    """
    parser = _parser()
    options = parser.parse_args(list(arguments))
    parser.require_server(options)
    if options.checkpoint is not None and not options.follow:
        parser.error("--checkpoint needs --follow")
    if not 0 < options.every < math.inf:
        parser.error(f"--every {options.every:g}: expected a number of seconds above 0")
    if options.html is not None and not options.html.parent.is_dir():
        parser.error(f"--html {options.html}: no such directory: {options.html.parent}")

    def print_failure(line: str) -> None:
        sys.stderr.write(f"klamm registrations: {options.bootstrap_server}: {line}\n")

    return guarded("klamm registrations", lambda: _report(options), on_failure=print_failure)


def _report(options: argparse.Namespace) -> int:
    require_extra("spark", feature="klamm registrations report")
    from klamm.dataframes.errors import ReadingError  # noqa: PLC0415 - --help needs none of it
    from klamm.registration_report.main import run_report  # noqa: PLC0415 - --help needs none of it
    from klamm.registration_report.report import Following, Scope  # noqa: PLC0415

    # Checked before Spark, whose start takes seconds, so that a wrong address is reported at once.
    with connect(options, timeout_ms=_REACH_TIMEOUT_MS) as admin:
        admin.describe_cluster().result()
    following = Following(every_s=options.every, checkpoint=options.checkpoint, late=options.late)
    try:
        return run_report(
            options.bootstrap_server,
            sys.stdout,
            output_format=options.output,
            properties=read_client_properties(options.command_config),
            scope=Scope(user=options.user and user_name(options.user), config=options.key, window=options.window),
            parquet=options.parquet,
            html=options.html,
            following=following if options.follow else None,
            sightings=None if options.metrics is None else sightings_of(options.metrics.split(",")),
        )
    except KeyboardInterrupt:
        return 0  # --follow is ended by Ctrl-C
    except (JavaNotFoundError, ReadingError) as error:
        sys.stderr.write(f"klamm registrations: {error}\n")
        return 1


def sightings_of(addresses: Sequence[str]) -> Callable[[], Sequence[Sighting]]:
    """Return a function that fetches the seen clients from the brokers.

    The first fetch happens here, so that a wrong address is reported at once.
    """
    latest = {address: sightings(fetch(address)) for address in addresses}

    def ask() -> Sequence[Sighting]:
        for address in addresses:
            try:
                latest[address] = sightings(fetch(address))
            except (RequestError, OSError) as error:  # --follow continues while a broker restarts
                sys.stderr.write(f"klamm registrations: {address}: {error}; its last response is used\n")
        return [one for of_broker in latest.values() for one in of_broker]

    return ask


def sightings(clients: Sequence[Client]) -> list[Sighting]:
    """Return the clients that a broker has seen and that did not register.

    Omitted because no config applies to them: clients without a client id (every client library sends one, health
    checks do not), admin clients, and clients that have neither produced nor consumed.
    """
    from klamm.registration_report.report import Sighting  # noqa: PLC0415 - --help needs none of it

    return [
        Sighting(
            user=client["principal"].partition(":")[2],
            client_id=client["client_id"],
            software=client["software_name"],
            version=client["software_version"],
            seen_ms=client["last_seen_ms"],
            kinds=tuple(client["kinds"]),
            enforceable=tuple(client.get("enforceable", ())),
        )
        for client in clients
        if client["registered"] is None
        and set(client["kinds"]) - {ClientKind.ADMIN}
        and client["client_id"] not in {"", *_OWN_CLIENT_IDS}
        and client["software_name"] != _OWN_SOFTWARE
    ]


def _parser() -> ToolParser:
    parser = ToolParser(prog="klamm registrations", description="Report which configs running clients can follow.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    report = commands.add_parser(
        "report",
        help="which client versions support which configs",
        description="Sum up the registrations on Spark.",
    )
    add_common(report, timeout_ms=None, outputs=("human", "json"))
    add_timeout(
        report,
        f"time limit for the first answer; default.api.timeout.ms of --command-config, else {_REACH_TIMEOUT_MS}",
    )
    report.add_argument(
        "--metrics",
        metavar="HOST:PORT[,HOST:PORT]",
        help="count clients that never registered too: the --metrics addresses of all brokers",
    )
    report.add_argument("--user", metavar="NAME", help="only this user's clients")
    report.add_argument("--key", metavar="CONFIG", help="only this config")
    report.add_argument(
        "--window",
        default="1 day",
        metavar="DURATION",
        help="width of the windows over time (default: 1 day)",
    )
    report.add_argument("--html", type=Path, metavar="FILE", help="write a self-contained page with plots")
    report.add_argument("--parquet", type=Path, metavar="DIR", help="write support, ignoring and windows as Parquet")
    report.add_argument("--follow", action="store_true", help="keep running and report again whenever clients register")
    report.add_argument(
        "--every",
        type=seconds,
        default=10.0,
        metavar="SECONDS",
        help="with --follow: seconds between two requests (default 10)",
    )
    report.add_argument(
        "--checkpoint",
        type=Path,
        metavar="DIR",
        help="with --follow: keep the state here and continue from it",
    )
    report.add_argument(
        "--late",
        default="1 day",
        metavar="DURATION",
        help="with --follow: how late a registration may arrive and still count in its window (default: 1 day)",
    )
    return parser
