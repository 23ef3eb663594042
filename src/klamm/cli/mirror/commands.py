"""Commands ``klamm mirror pause|resume|stop|restart FLOW [TOPIC...]`` for a running mirror."""

from __future__ import annotations

import json
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from klamm.cli.arguments import ToolParser
from klamm.cli.connection import RequestError, guarded
from klamm.cli.output import print_result
from klamm.cli.status_listener import add_limit, ask, limit_s
from klamm.config_providers import resolve
from klamm.mirror.settings.mirror import METRICS_LISTEN
from klamm.properties import SettingsError, read_properties, split_address

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping, Sequence

_TIMEOUT_S: Final = 60.0
"""Time limit of a command in seconds, that of the listener."""
_EVERY_INTERFACE: Final = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - the address of a file, not listened on
_TEXTS: Final = {
    "pause": "Fetch no records of a flow, or of some of its topics. Partitions stay with their tasks, and topics,\n"
    "configs and ACLs are still synced.",
    "resume": "Continue a flow and all of its topics, or some of its topics.",
    "stop": "Release the partitions of a flow, or of some of its topics. Their configs and ACLs are not synced.",
    "restart": "Start a FAILED flow again, or the STOPPED partitions of a flow or of some of its topics.",
}


def main(arguments: Sequence[str]) -> int:
    """Run the action of the first word. Return 0 if the mirror has accepted it, else 1; wrong usage exits with 2."""
    action = arguments[0]
    prog = f"klamm mirror {action}"
    parser = new_parser(prog, _TEXTS[action])
    parser.add_argument(
        "topics", nargs="*", default=[], metavar="TOPIC", help="a source topic (default: the whole flow)"
    )
    options = parser.parse_args(list(arguments[1:]))

    def run() -> int:
        answer = send(options, {"action": action, "flow": options.flow, "topics": options.topics})
        print_result(options.output, answer, lambda: state_lines(answer))
        return 0

    return guarded(prog, run)


def state_lines(answer: Mapping[str, Any]) -> list[str]:
    """Return the requested states, or what was restarted, as lines for people."""
    flow = answer["flow"]
    if "state" in answer:
        topics = [f"{flow}: topic {topic}: {state}" for topic, state in answer["topics"].items()]
        return [f"{flow}: {answer['state']}", *topics]
    if answer["restarted_flow"]:
        return [f"{flow}: starts again"]
    rows = [f"{flow}: {row['topic']}-{row['partition']} starts again" for row in answer["restarted"]]
    return rows or [f"{flow}: no partition is STOPPED, nothing was restarted"]


def new_parser(prog: str, text: str) -> ToolParser:
    """Return a parser with the flow and the flags that name the running mirror."""
    parser = ToolParser(
        prog=prog,
        description=f"{text}\nThe command goes to the status listener of the running mirror.",
        epilog="Exit codes: 0 done, 1 rejected, or the mirror does not answer, 2 wrong usage.",
    )
    parser.add_argument("flow", metavar="A->B", help="name of the flow, in quotes")
    parser.add_argument(
        "--properties", type=Path, default=Path("mm2.properties"), metavar="FILE",
        help="MirrorMaker's properties file (default: mm2.properties)",
    )  # fmt: skip
    add_mirror(parser)
    return parser


def add_mirror(parser: ToolParser) -> None:
    """Add the flags for the address of the running mirror and for the output."""
    parser.add_value(
        "--metrics", metavar="HOST:PORT", help=f"status listener of the mirror (default: {METRICS_LISTEN} of the file)"
    )
    add_limit(parser, _TIMEOUT_S)
    parser.add_argument("-o", "--output", choices=("human", "json", "yaml"), default="human", help="output format")


def send(options: argparse.Namespace, command: Mapping[str, Any]) -> dict[str, Any]:
    """Send a command to the mirror and return its answer.

    Raises:
        RequestError: The address of the mirror is not known, it does not answer, or it rejects the command.
    """
    address = listener_of(options)
    answer = ask(address, "/commands", command, timeout_s=limit_s(options, _TIMEOUT_S))
    try:
        document = json.loads(answer.body)
    except ValueError:
        document = None
    if answer.status == HTTPStatus.OK and isinstance(document, dict):
        return document
    match document:
        case {"error": str(reason)}:
            raise RequestError(reason)
        case _:
            text = answer.body.decode(errors="replace").strip()
            raise RequestError(
                f"{address} answers with HTTP status {answer.status}: {text[:200]}; is it the {METRICS_LISTEN} address "
                "of a klamm mirror?"
            )


def listener_of(options: argparse.Namespace) -> str:
    """Return the address of the mirror's status listener: that of the flag, or of the properties file.

    Raises:
        RequestError: The file has none.
    """
    if options.metrics:
        return str(options.metrics)
    file: Path = options.properties
    try:
        properties = resolve(read_properties(file))
    except SettingsError as error:
        raise RequestError(f"{error}; name the mirror with --metrics HOST:PORT") from error
    value = properties.get(METRICS_LISTEN, "").strip()
    if not value:
        raise RequestError(f"{file} does not set {METRICS_LISTEN}: use --metrics HOST:PORT of the running mirror")
    address = split_address(value)
    if address is None:
        raise RequestError(f"{file}: {METRICS_LISTEN}={value}: expected host:port; else use --metrics HOST:PORT")
    host, port = address
    host = _EVERY_INTERFACE.get(host, host)
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
