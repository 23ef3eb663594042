"""Commands ``klamm mirror promote FILE [TOPIC...]`` and ``klamm mirror demote FILE [TOPIC...]``."""

from __future__ import annotations

import json
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from klamm.cli.arguments import ToolParser, seconds
from klamm.cli.connection import RequestError, guarded
from klamm.cli.mirror.commands import add_mirror, listener_of, send
from klamm.cli.mirror.cutover import chosen_flow
from klamm.cli.output import print_error, print_result, table_lines
from klamm.cli.status_listener import ask
from klamm.config_providers import resolve
from klamm.display import counted
from klamm.mirror.progress.partition_progress import CopyState
from klamm.mirror.settings.mirror import parse_settings
from klamm.properties import read_properties

if TYPE_CHECKING:
    import argparse
    from collections.abc import Collection, Mapping, Sequence

_WAIT_S: Final = 60.0
_POLL_S: Final = 0.5
_MIRRORED: Final = (CopyState.COPYING, CopyState.PAUSED)
"""States of partitions that klamm leads again. PAUSED: ``topics`` does not select their topic any more."""
_PLAN: Final = ("TOPIC", "REMOTE TOPIC", "PARTITIONS", "LAG", "OPEN TRANSACTIONS", "OBSTACLE")
_RESULT: Final = ("TOPIC", "PARTITION", "STATE", "LOG END", "RESULT")
_TEXTS: Final = {
    "promote": "Hand remote topics over to the brokers of the target, so that clients can write to them. Stop the\n"
    "producers of the source before. For flows with klamm.offsets.by=replica.",
    "demote": "Mirror promoted topics again. klamm takes a remote topic back from the brokers if nothing was written\n"
    "to it since its promotion: its replicas keep their records, and it becomes read-only.",
}


def main(arguments: Sequence[str]) -> int:
    """Run the action of the first word. Return 0 if it was done or nothing prevents it, else 1."""
    action = arguments[0]
    prog = f"klamm mirror {action}"
    options = _parser(action, prog).parse_args(list(arguments[1:]))
    return guarded(prog, partial(_promote if action == "promote" else _demote, prog, options))


def _parser(action: str, prog: str) -> ToolParser:
    parser = ToolParser(
        prog=prog,
        description=f"{_TEXTS[action]}\nThe command goes to the status listener of the running mirror.",
        epilog="Exit codes: 0 done, or nothing prevents it; 1 something does, or the mirror does not answer;\n"
        "2 wrong usage.",
    )
    parser.add_argument("properties", type=Path, metavar="FILE", help="MirrorMaker's properties file")
    parser.add_argument(
        "topics", nargs="*", default=[], metavar="TOPIC", help="a source topic (default: all topics of the flow)"
    )
    parser.add_value("--flow", metavar="A->B", help="which flow, when several are enabled")
    add_mirror(parser)
    if action == "promote":
        parser.add_switch("--yes", help="promote; without it, only the plan is shown")
        parser.add_switch(
            "--accept-loss", help="the source is lost: promote what the replicas have, without waiting for its log end"
        )
    does = "withdraw the promotion of topics that take longer" if action == "promote" else "wait so long for the result"
    parser.add_value("--wait", type=seconds, metavar="SECONDS", help=f"{does} (default: {_WAIT_S:g})")
    return parser


def _command(options: argparse.Namespace, action: str) -> dict[str, Any]:
    settings = parse_settings(resolve(read_properties(options.properties)))
    return {
        "action": action,
        "flow": chosen_flow(settings.require_flows(), options.flow).name,
        "topics": options.topics,
    }


def _demote(prog: str, options: argparse.Namespace) -> int:
    answer = send(options, _command(options, "demote") | {"take_back": True})
    results = _wait_for_results(options, answer["flow"], answer["demoted"], _MIRRORED) if answer["demoted"] else []
    print_result(options.output, {"flow": answer["flow"], "topics": results}, lambda: _result_lines(results))
    for each in answer["handed_over"]:
        print_error(
            f"{prog}: {each['topic']}: {each['reason']}. To mirror it again, delete {each['remote_topic']} with these "
            f"records, then run {_demote_line(options, [each['topic']])}"
        )
    if late := [result["topic"] for result in results if not result["is_done"]]:
        print_error(
            f"{prog}: {', '.join(late)}: not mirrored again within the time of --wait; that stays requested. "
            f"klamm mirror promote {options.properties} {' '.join(late)} withdraws it"
        )
    return int(bool(late or (options.topics and answer["handed_over"])))


def _demote_line(options: argparse.Namespace, topics: Sequence[str]) -> str:
    return " ".join(["klamm mirror demote", str(options.properties), *topics])


def _promote(prog: str, options: argparse.Namespace) -> int:
    command = _command(options, "promote")
    answer = send(options, command | {"accept_loss": options.accept_loss, "execute": options.yes})
    if not options.yes:
        print_result(options.output, answer, lambda: _plan_lines(answer))
        return int(any(row["obstacles"] for row in answer["topics"]))
    if answer["warning"]:
        print_error(f"{prog}: {answer['warning']}; the status page names the groups")
    try:
        return _finish(prog, options, command, answer)
    except BaseException:  # also after Ctrl-C
        if topics := answer["pending"]:
            print_error(
                f"{prog}: the promotion of {', '.join(topics)} stays requested, and the mirror carries it out; "
                f"{_demote_line(options, topics)} withdraws it, and takes back what is handed over"
            )
        raise


def _finish(prog: str, options: argparse.Namespace, command: Mapping[str, Any], answer: Mapping[str, Any]) -> int:
    """Wait for the results of a promotion and print them. Withdraw what takes too long."""
    results = _wait_for_results(options, answer["flow"], answer["topics"], (CopyState.PROMOTED,))
    print_result(options.output, {"flow": answer["flow"], "topics": results}, lambda: _result_lines(results))
    left = [result["topic"] for result in results if not result["is_done"]]
    if not left:
        return 0
    handed_over = send(options, {"action": "demote", "flow": command["flow"], "topics": left})["handed_over"]
    withdrawn = [topic for topic in left if topic not in [each["topic"] for each in handed_over]]
    if withdrawn:
        print_error(
            f"{prog}: {', '.join(withdrawn)}: not promoted within the time of --wait; the promotion is withdrawn"
        )
    for each in handed_over:
        reason = each["unfinished"] or "its result is not known yet"
        print_error(f"{prog}: {each['topic']}: {each['remote_topic']} is handed over; unfinished: {reason}")
    return 1


def _wait_for_results(
    options: argparse.Namespace, flow_name: str, topics: Sequence[Mapping[str, Any]], states: Collection[CopyState]
) -> list[dict[str, Any]]:
    """Wait until all partitions of topics have one of some states, or the time is over. Return the state of each."""
    deadline = time.monotonic() + (options.wait or _WAIT_S)
    while True:
        is_over = time.monotonic() >= deadline
        try:
            flows = json.loads(ask(listener_of(options), "/status.json").body)["flows"]
        except (RequestError, ValueError):  # the mirror may be busy or restart
            if is_over:
                raise
            time.sleep(_POLL_S)
            continue
        rows = next((flow["partitions"] for flow in flows if flow["flow"] == flow_name), ())
        results = [_result(topic, [row for row in rows if row["topic"] == topic["topic"]], states) for topic in topics]
        if all(result["is_done"] for result in results) or is_over:
            return results
        time.sleep(_POLL_S)


def _result(
    topic: Mapping[str, Any], rows: Sequence[Mapping[str, Any]], states: Collection[CopyState]
) -> dict[str, Any]:
    names = ("partition", "state", "target_end", "reason")
    is_complete = len(rows) >= max(1, topic["partitions"])
    return {
        "topic": topic["topic"],
        "remote_topic": topic["remote_topic"],
        "is_done": is_complete and all(row["state"] in states for row in rows),
        "partitions": [{name: row[name] for name in names} for row in rows],
    }


def _plan_lines(answer: Mapping[str, Any]) -> list[str]:
    rows = [_PLAN]
    for topic in answer["topics"]:
        counts = (topic[name] for name in ("partitions", "lag", "open_transactions"))
        cells = ("-" if count is None else f"{count:,}" for count in counts)
        rows.append((topic["topic"], topic["remote_topic"], *cells, "; ".join(topic["obstacles"]) or "-"))
    end = f"{counted(len(answer['topics']), 'topic')} would be promoted; nothing was changed without --yes"
    warnings = [f"{each['remote_topic']}: {each['warning']}" for each in answer["topics"] if each["warning"]]
    return [*table_lines(rows), *warnings, f"{answer['flow']}: {end}"]


def _result_lines(results: Sequence[Mapping[str, Any]]) -> list[str]:
    rows = [
        (result["topic"], str(each["partition"]), each["state"], str(each["target_end"]), each["reason"] or "-")
        for result in results
        for each in result["partitions"]
    ]
    return table_lines([_RESULT, *rows])
