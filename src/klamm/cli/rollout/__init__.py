"""Command ``klamm rollout``: a config change in waves, watched by guards, that is reverted if a guard fails."""

from __future__ import annotations

import getpass
import socket
import sys
import uuid
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from klamm.cli import EXIT_OK, write_nothing_more
from klamm.cli.arguments import ToolParser, add_common
from klamm.cli.connection import (
    RequestError,
    UsageError,
    call_timeout,
    connect,
    guarded,
    parse_addresses,
    read_client_properties,
)
from klamm.cli.output import print_error, print_line, print_result
from klamm.cli.profiles import fill_in
from klamm.cli.resources.plan import clusters_of, with_server
from klamm.cli.rollout.display import dry_run_document, dry_run_lines, list_lines, status_lines, step_line
from klamm.clock import wall_clock_ms
from klamm.display import escaped
from klamm.properties import SettingsError
from klamm.rollout.record import RolloutEvent, RolloutRecord, RolloutState, TransitionError, advance, begun, to_document
from klamm.rollout.waves import DEFAULT_PERCENTAGES

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterator, Sequence

    from klamm.admin import AdminClient
    from klamm.resources.files import ClusterFiles
    from klamm.rollout.store import RolloutStore

_PROG: Final = "klamm rollout"
EXIT_NOT_DONE: Final = 3
_ACTIONS: Final = ("start", "status", "list", "pause", "resume", "abort")
_EPILOG: Final = """\
guards:
  lag: GROUP < 1000                               records that a group has not read; fails when records are lost for it
  under-replicated < 1                            partitions with too few in-sync replicas
  clients: METRIC [p99|avg|max] < 1.2x unchanged  metric that clients push (KIP-714), against clients not changed yet
  clients: METRIC [p99|avg|max] < 1.2x before     the same, against the figure before the roll-out
  metrics: [increase] NAME{label="value"} < 5     metric of klamm
  prometheus: URL EXPRESSION < 0.01               Prometheus query
  command: COMMAND                                exit code 0

Exit codes: 0 done, or paused or aborted as asked; 1 rejected by the cluster or the tool, 2 wrong or missing flags,
3 reverted by a guard or a rejected setting, held or taken over.
"""


class _RolloutParser(ToolParser):
    """Parser of flags before and after the action, for which argparse parses twice."""

    def connects(self, instead: Sequence[str] = ()) -> None:
        """Leave the choice of the servers to ``main``: it is made once, and a file may name the cluster."""


def parser() -> ToolParser:
    """Return the argument parser of ``klamm rollout``."""
    tool = _RolloutParser(
        prog=_PROG,
        description="Change configs in waves. Guards watch each wave; when one fails, all waves are reverted.",
        epilog=_EPILOG,
    )
    tool.add_argument("action", choices=_ACTIONS, help="start one, show one or all, or decide about one")
    tool.add_argument("id", nargs="?", metavar="ID", help="the roll-out; not for start and list")
    add_common(tool)
    which = tool.add_argument_group("start: what is changed")
    for flag, metavar, text in (
        ("--topic", "PATTERN", "topics, as a regular expression for whole names; commas mean or"),
        ("--broker", "ID,ID", "brokers, or all"),
        (
            "--user",
            "NAME,NAME",
            "users (%%2C is a comma): their client configs by percentage of the clients, or quotas",
        ),
        ("--file", "PATH", "topics of a file or directory for klamm plan, of one cluster; only configs may differ"),
        ("--add-config", "K=V,K=V", "configs to set, as for klamm configs"),
        ("--delete-config", "K,K", "configs to remove"),
    ):
        which.add_argument(flag, metavar=metavar, help=text)
    which.add_argument("--user-defaults", action="store_true", help="client configs of the default user")
    how = tool.add_argument_group("start: how")
    how.add_argument(
        "--waves",
        metavar="PERCENTAGES",
        help=f"percentages after each wave (default {DEFAULT_PERCENTAGES})".replace("%", "%%"),
    )
    how.add_argument(
        "--wave", action="append", metavar="NAMES", help="an explicit wave instead, by patterns; once for each wave"
    )
    how.add_argument("--bake", metavar="TIME", default="10m", help="time that guards watch each wave (default 10m)")
    how.add_argument("--interval", metavar="TIME", default="5s", help="time between two checks (default 5s)")
    how.add_argument("--guard", action="append", default=[], metavar="GUARD", help="condition, see below; repeatable")
    how.add_argument(
        "--metrics",
        action="append",
        default=[],
        metavar="HOST:PORT",
        help="metrics listener of a klamm broker or gateway, for the guards clients and metrics; repeatable",
    )
    how.add_argument(
        "--without-data",
        choices=("hold", "revert"),
        default="hold",
        help="what happens when a guard has no data at the end of a bake time (default hold)",
    )
    how.add_argument("--dry-run", action="store_true", help="show waves and impact, validate, change nothing")
    tool.add_argument(
        "--leave-unrestored",
        action="store_true",
        help="abort: end even if values cannot be restored, such as those of a broker that is gone; they are listed",
    )
    return tool


def main(arguments: Sequence[str]) -> int:
    """Run one action. Return 0 on success, 1 on failure, 3 for a roll-out that is not done; wrong flags exit with 2."""
    flags = parser()
    options = flags.parse_intermixed_args(list(arguments))
    has_file = options.action == "start" and bool(options.file)
    try:
        fill_in(options, needs_server=not has_file)
    except SettingsError as error:
        flags.error(str(error))
    if not has_file:
        flags.require_server(options)
    if (options.id is None) != (options.action in {"start", "list"}):
        flags.error(f"{options.action} {'needs' if options.id is None else 'takes no'} ID")
    if options.leave_unrestored and options.action != "abort":
        flags.error(f"--leave-unrestored is for abort, not for {options.action}")
    actions: dict[str, Callable[[argparse.Namespace], int]] = {
        "start": partial(_start, flags=flags),
        "list": _list,
        "status": _status,
    }
    return guarded(_PROG, lambda: _guarded(options, actions.get(options.action, _decide)))


def _guarded(options: argparse.Namespace, action: Callable[[argparse.Namespace], int]) -> int:
    from klamm.rollout.runner import RevertError  # noqa: PLC0415  # wrong flags need no network library
    from klamm.rollout.store import RolloutConflictError, StaleRecordError  # noqa: PLC0415

    try:
        return action(options)
    except StaleRecordError as error:
        print_error(f"{_PROG}: {escaped(str(error))}")
        return EXIT_NOT_DONE
    except (RolloutConflictError, TransitionError, RevertError) as error:
        raise RequestError(str(error)) from error


@contextmanager
def _opened(options: argparse.Namespace, rollout_id: str | None) -> Iterator[tuple[AdminClient, RolloutStore]]:
    """Yield an admin client, whose client id names the roll-out in the change history, and the records."""
    from klamm.kafka_client.connection.transport import ConnectionSettings  # noqa: PLC0415  # wrong flags need no network library
    from klamm.rollout.store import RolloutStore  # noqa: PLC0415

    client_id = _PROG.replace(" ", "-") + (f"-{rollout_id}" if rollout_id else "")
    try:
        servers = tuple(parse_addresses(options.bootstrap_server))
    except SettingsError as error:
        raise UsageError(str(error)) from error
    properties = read_client_properties(options.command_config)
    settings = ConnectionSettings.of(servers, properties, client_id)
    with connect(options, client_id=client_id, properties=properties) as admin:
        store = RolloutStore(settings, admin, patience_s=int(call_timeout(options, properties)) / 1000)
        try:
            yield admin, store
        finally:
            store.close()


def _start(options: argparse.Namespace, *, flags: ToolParser) -> int:
    from klamm.admin.impact import impact_of  # noqa: PLC0415  # wrong flags need no network library
    from klamm.cli.rollout.plan import planned  # noqa: PLC0415
    from klamm.rollout.entities import changes_of  # noqa: PLC0415

    files = None
    if options.file:
        files = _declared(options)
        options = with_server(options, flags, files)
    rollout_id = uuid.uuid4().hex[:8]
    with _opened(options, rollout_id) as (admin, store):
        try:
            plan = planned(options, admin, files)
        except SettingsError as error:
            raise UsageError(str(error)) from error
        record = begun(replace(_owned(plan.record), id=rollout_id), at_ms=wall_clock_ms())
        if options.dry_run:
            store.check_addition(record)
            impact = impact_of(changes_of(record.waves, record.before), admin)
            document = {**dry_run_document(record, plan.current), "impact": impact.document()}
            print_result(options.output, document, lambda: [*dry_run_lines(record, plan.current), *impact.lines()])
            print_error("Nothing was changed.")
            return EXIT_OK
        record = store.add(record)
        print_error(f"Roll-out {record.id} begins. If this command is interrupted: {_PROG} resume {record.id}")
        return _drive(options, admin, store, record)


def _declared(options: argparse.Namespace) -> ClusterFiles:
    """Return what ``--file`` declares, which must be for one cluster.

    Raises:
        RequestError: It is for several clusters, or for another one than that of ``--cluster``.
        SettingsError: A file cannot be read or is invalid.
    """
    options.path = Path(options.file)
    files, *others = clusters_of(options)
    if others:
        names = ", ".join(str(each.cluster) for each in (files, *others))
        raise RequestError(f"--file {options.file} declares several clusters ({names}): name one directory")
    return files


def _drive(options: argparse.Namespace, admin: AdminClient, store: RolloutStore, record: RolloutRecord) -> int:
    from klamm.rollout.entities import Entities  # noqa: PLC0415  # wrong flags need no network library
    from klamm.rollout.probes import Probe  # noqa: PLC0415
    from klamm.rollout.runner import Runner  # noqa: PLC0415

    def report(latest: RolloutRecord) -> None:
        if options.output != "human":
            return
        try:
            print_line(escaped(step_line(latest)))
            sys.stdout.flush()
        except OSError:  # the output is closed or its disk is full; no other process would drive the roll-out
            write_nothing_more()

    runner = Runner(
        store,
        Entities(admin),
        Probe(admin, now_ms=wall_clock_ms),
        now_ms=wall_clock_ms,
        on_step=report,
        ends_unrestored=options.leave_unrestored,
    )
    record = runner.run(record)
    print_result(options.output, to_document(record), lambda: [f"  left alone: {each}" for each in record.left_alone])
    if record.state is RolloutState.HELD:
        print_error(f"{_PROG}: held; continue with {_PROG} resume {record.id}, or end with {_PROG} abort {record.id}")
    if record.state is RolloutState.DONE or (options.action == "abort" and record.is_over):
        return EXIT_OK
    return EXIT_NOT_DONE


def _decide(options: argparse.Namespace) -> int:
    """Pause, resume or abort a roll-out. The process that drove it notices that the record has changed, and ends."""
    event = RolloutEvent(options.action)
    with _opened(options, options.id) as (admin, store):
        record = _decided(store, _of_id(store, options.id), event)
        if event is RolloutEvent.PAUSE:
            print_result(options.output, to_document(record), lambda: [step_line(record)])
            return EXIT_OK
        if options.output == "human":
            print_line(escaped(step_line(record)))
        return _drive(options, admin, store, record)


def _decided(store: RolloutStore, record: RolloutRecord, event: RolloutEvent) -> RolloutRecord:
    """Write the decision of an operator. It may come while the driving process writes the next state."""
    from klamm.rollout.store import StaleRecordError  # noqa: PLC0415  # wrong flags need no network library

    while True:
        after = advance(_owned(record), event, at_ms=wall_clock_ms(), reason=f"{event.value} by {_operator()}")
        try:
            return store.replace(record, after)
        except StaleRecordError as error:
            if event is RolloutEvent.RESUME:  # another process drives it
                raise
            record = error.latest


def _status(options: argparse.Namespace) -> int:
    with _opened(options, options.id) as (_, store):
        record = _of_id(store, options.id)
    print_result(options.output, to_document(record), lambda: status_lines(record))
    return EXIT_OK


def _list(options: argparse.Namespace) -> int:
    with _opened(options, None) as (_, store):
        records = store.records()
    print_result(options.output, [to_document(record) for record in records], lambda: list_lines(records))
    return EXIT_OK


def _of_id(store: RolloutStore, rollout_id: str) -> RolloutRecord:
    records = {record.id: record for record in store.records()}
    if rollout_id not in records:
        raise RequestError(f"there is no roll-out {rollout_id}; {_PROG} list shows all")
    return records[rollout_id]


def _owned(record: RolloutRecord) -> RolloutRecord:
    """Return a record that this process drives."""
    return replace(record, operator=_operator(), runner=uuid.uuid4().hex)


def _operator() -> str:
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a user id without a name, as in containers
        user = "unknown"
    return f"{user}@{socket.gethostname()}"
