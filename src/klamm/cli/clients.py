"""Commands ``klamm clients list`` and ``klamm clients watch``: connected clients and whether they follow their configs.

Kafka has no request that lists connections. The data therefore comes from the broker's metrics listener
(``klamm broker --metrics HOST:PORT``), which is separate from the listeners of Kafka clients.
"""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from contextlib import suppress
from datetime import UTC, datetime
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final

from klamm.cli import EXIT_USAGE
from klamm.cli.arguments import ToolParser, seconds, unknown_action
from klamm.cli.connection import RequestError, guarded
from klamm.cli.output import print_error, print_line, print_result, table_lines
from klamm.cli.status_listener import TIMEOUT_S, add_limit, ask, limit_s
from klamm.display import counted, printable
from klamm.properties import did_you_mean
from klamm.security.principals import user_name

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable, Mapping, Sequence

_PROG: Final = "klamm clients"
_ACTIONS: Final = ("list", "watch", "history", "revert")
_PATH: Final = "/clients.json"
_IS_IT: Final = "is it the --metrics address of a klamm broker, or of a gateway with client configs?"
_COLUMNS: Final = (
    "PRINCIPAL",
    "CLIENT-ID",
    "KIND",
    "SOFTWARE",
    "ADDRESS",
    "LAST SEEN (UTC)",
    "REGISTERED",
    "SET",
    "REPORTED",
    "STANDING",
)

_NOT_IN_LINE: Final = frozenset({"pending", "ignores"})
"""Standings of clients that do not follow the configs set for them yet."""
EXIT_NOT_IN_LINE: Final = 3

_KEY: Final = ("principal", "client_id", "software_name", "software_version", "host")
"""Fields that identify a client."""

Client = dict[str, Any]
PrintedClients = dict[tuple[str, ...], tuple[str, str]]
"""Name and state of each client as last printed."""


def main(arguments: Sequence[str]) -> int:
    """Run one action.

    Return 0 on success, 1 if the broker does not answer, and 3 if ``--wait`` ended too early (see ``--help``). Wrong
    flags exit with 2 (SystemExit).
    """
    if arguments and arguments[0] in {"history", "revert"}:
        from klamm.cli.history.command import clients_main  # noqa: PLC0415  # only these read the store

        return clients_main(arguments)
    if arguments and not arguments[0].startswith("-") and arguments[0] not in _ACTIONS:
        print_error(unknown_action(_PROG, arguments[0], _ACTIONS))
        return EXIT_USAGE
    options = _parser().parse_args(list(arguments))
    if options.action == "watch":
        return guarded(_PROG, lambda: _watch(options))
    return guarded(_PROG, lambda: _list(options))


def _parser() -> ToolParser:
    parser = ToolParser(
        prog=_PROG,
        description="List the clients of a broker and whether they follow the configs set for them (KIP-649).\n"
        "klamm clients history shows past changes of client configs, klamm clients revert undoes them.",
        epilog="Exit codes: 0 done, 1 the broker does not answer, 2 wrong or missing flags,\n"
        "3 after --wait: no client is connected, or one is pending or ignores configs.",
    )
    parser.add_argument(
        "action",
        choices=("list", "watch"),
        help="one table, or a line for each change",
    )
    parser.add_value(
        "--metrics", metavar="HOST:PORT", required=True, help="the address given to klamm broker or gateway --metrics"
    )
    add_limit(parser)
    parser.add_switch("--gone", help="include clients that have disconnected")
    parser.add_value("--user", metavar="NAME", help="only clients of this user")
    parser.add_value("--client", metavar="ID", help="only clients with this client id")
    parser.add_argument(
        "--interval",
        type=seconds,
        default=2.0,
        metavar="SECONDS",
        help="watch and --wait: seconds between two requests (default 2)",
    )
    parser.add_switch("--pending", help="list: only clients that are pending or ignore configs")
    parser.add_value(
        "--wait", type=seconds, metavar="SECONDS", help="list: wait until no client is pending or ignores configs"
    )
    parser.add_argument(
        "-o", "--output", choices=("human", "json", "yaml"), default="human", help="list: output format"
    )
    return parser


def _list(options: argparse.Namespace) -> int:
    clients = fetch(options.metrics, limit_s(options))
    if options.wait is not None:
        clients = _wait(clients, options)
    selected = _chosen(clients, options)
    behind = [client for client in selected if client["standing"] in _NOT_IN_LINE]
    shown = behind if options.pending else selected

    def lines() -> list[str]:
        if not selected:
            return [_none_found(clients, options)]
        return [*(table(shown) if shown else ()), summary(selected)]

    print_result(options.output, shown, lines)
    return EXIT_NOT_IN_LINE if options.wait is not None and (behind or not selected) else 0


def _wait(clients: list[Client], options: argparse.Namespace) -> list[Client]:
    """Return the clients as soon as all chosen ones are in line, or when the time is over. Brokers may restart."""
    until = time.monotonic() + options.wait
    while (left_s := until - time.monotonic()) > 0:
        selected = _chosen(clients, options)
        if selected and not any(client["standing"] in _NOT_IN_LINE for client in selected):
            break
        time.sleep(min(options.interval, left_s))
        with suppress(RequestError):
            clients = fetch(options.metrics, limit_s(options))
    return clients


def summary(clients: Sequence[Client]) -> str:
    """Return a line with the number of clients by standing, the most frequent one first."""
    counts = Counter(client["standing"] for client in clients)
    listed = ", ".join(f"{count:,} {standing}" for standing, count in counts.most_common())
    return f"{counted(len(clients), 'client')}: {listed}"


def _watch(options: argparse.Namespace) -> int:
    previous: PrintedClients = {}
    clients = fetch(options.metrics, limit_s(options))  # a wrong address fails at once; only later failures are retried
    while True:
        for line in changed(previous, _chosen(clients, options)):
            print_line(line)
        sys.stdout.flush()
        clients = _fetch_again(options)


def _fetch_again(options: argparse.Namespace) -> list[Client]:
    """Retry until the broker answers, waiting before each attempt, because brokers restart."""
    is_reported = False
    while True:
        time.sleep(options.interval)
        try:
            return fetch(options.metrics, limit_s(options))
        except RequestError as error:
            if not is_reported:
                print_error(f"{_PROG}: {error}; retrying every {options.interval:g} s")
            is_reported = True


def fetch(address: str, timeout_s: float = TIMEOUT_S) -> list[Client]:
    """Fetch the list of clients from a broker's metrics listener.

    Args:
        address: Host and port of the listener.
        timeout_s: Limit in seconds of each step.

    Raises:
        RequestError: The address does not answer, or not as a klamm broker, or some of the processes of a gateway are
            missing. The message contains the address.
    """
    answer = ask(address, _PATH, timeout_s=timeout_s)
    if answer.status != HTTPStatus.OK:
        raise RequestError(f"{address} answers with HTTP status {answer.status}; {_IS_IT}")
    try:
        document = json.loads(answer.body)
        clients: list[Client] = document["clients"]
        silent = document.get("silent_processes", 0)
    except (ValueError, KeyError, TypeError) as error:
        raise RequestError(f"{address} returned no list of clients; {_IS_IT} ({error!r})") from error
    if silent:
        raise RequestError(f"{address}: {silent} of its processes did not report their clients in time; try again")
    return clients


def _chosen(clients: Iterable[Client], options: argparse.Namespace) -> list[Client]:
    wanted = (client for client in clients if _is_wanted(client, options))
    return [client for client in wanted if options.gone or client["connections"] > 0]


def _is_wanted(client: Client, options: argparse.Namespace) -> bool:
    """Return whether the flags select this client, regardless of whether it is connected."""
    is_of_user = options.user is None or user_name(options.user) == client["principal"].partition(":")[2]
    return is_of_user and options.client in {None, client["client_id"]}


def _none_found(clients: Sequence[Client], options: argparse.Namespace) -> str:
    """Return the line printed in place of an empty table; it suggests the nearest known name if a name was given."""
    gone = any(_is_wanted(client, options) for client in clients)
    if gone:
        return "No client is connected; --gone shows those that left."
    hint, users = "", {client["principal"].partition(":")[2] for client in clients}
    if options.user is not None and user_name(options.user) not in users:
        hint = did_you_mean(user_name(options.user), users)
    elif options.client is not None:
        hint = did_you_mean(options.client, {client["client_id"] for client in clients})
    of_user = "" if options.user is None else f" of user '{user_name(options.user)}'"
    of_client = "" if options.client is None else f" with the client id '{options.client}'"
    return f"No client{of_user}{of_client} is known{hint or '.'}"


def table(clients: Sequence[Client]) -> list[str]:
    """Return a heading line, followed by one line per client."""
    return table_lines([_COLUMNS, *(_cells(client) for client in clients)])


def _cells(client: Client) -> tuple[str, ...]:
    count = client["connections"]
    seen = datetime.fromtimestamp(client["last_seen_ms"] / 1000, tz=UTC).strftime("%Y-%m-%d %H:%M:%S")
    return (
        printable(client["principal"]),
        printable(client["client_id"]) or "(none)",
        ", ".join(client["kinds"]) or "-",
        _software(client),
        f"{client['host']} x{count}" if count else f"{client['host']} (gone)",
        seen,
        _registered(client["registered"]),
        _pairs(client["effective"]),
        _reported(client),
        _standing(client),
    )


def _registered(keys: Sequence[str] | None) -> str:
    """Return the registered keys as text. No registration is shown differently from an empty list of keys."""
    return "unknown (never registered)" if keys is None else f"[{', '.join(map(printable, keys))}]"


def _software(client: Client) -> str:
    return printable(f"{client['software_name']} {client['software_version']}")


def _pairs(values: Mapping[str, str]) -> str:
    return ", ".join(f"{key}={value}" for key, value in values.items()) or "-"


def _reported(client: Client) -> str:
    """Return the reported values as text. An exclamation mark follows each that differs from the value that is set."""
    drift = client.get("drift", ())
    return ", ".join(f"{key}={value}{'!' * (key in drift)}" for key, value in client.get("reported", {}).items()) or "-"


def _standing(client: Client) -> str:
    standing: str = client["standing"]
    return f"{standing} {', '.join(client['ignored'])}" if standing == "ignores" else standing


def changed(previous: PrintedClients, clients: Iterable[Client]) -> list[str]:
    """Return one line per client that connected, disconnected or changed, and update ``previous``."""
    now = {
        tuple(str(client[part]) for part in _KEY): (
            _name(client),
            f"{_pairs(client['effective'])}; {_standing(client)}",
        )
        for client in clients
    }
    lines = [f"- {name}" for key, (name, _) in previous.items() if key not in now]
    for key, (name, state) in now.items():
        if key not in previous:
            lines.append(f"+ {name}: {state}")
        elif previous[key][1] != state:
            lines.append(f"~ {name}: {previous[key][1]} -> {state}")
    previous.clear()
    previous.update(now)
    return lines


def _name(client: Client) -> str:
    names = [printable(client["principal"]), printable(client["client_id"]) or "(none)"]
    return f"{' '.join(names)} ({_software(client)}, {client['host']})"
