"""Command ``klamm drift PATH``: watch whether clusters are as their files declare, with a metric for each resource."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from klamm.atomic_file import replace_file
from klamm.cli import EXIT_FAILED, EXIT_OK, is_output_failure
from klamm.cli.arguments import INT32_MAX, ToolParser
from klamm.cli.connection import RequestError, guarded
from klamm.cli.output import print_error
from klamm.cli.resources.plan import (
    EXIT_DRIFT,
    add_flags,
    clusters_of,
    connected,
    ownership_of,
    rules_of,
    show,
)
from klamm.display import escaped
from klamm.kafka_client.errors import CLUSTER_ERRORS, explain
from klamm.monitoring.exposition import CONTENT_TYPE, Page
from klamm.properties import SettingsError, split_address
from klamm.server.arguments import whole_number

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from klamm.resources.engine import Plan

DEFAULT_INTERVAL_S: Final = 60
_PROG: Final = "klamm drift"
_FAILURES: Final = (RequestError, SettingsError, OSError, *CLUSTER_ERRORS)


def parser() -> ToolParser:
    """Return the argument parser of ``klamm drift``."""
    tool = ToolParser(
        prog=_PROG,
        description="Compare clusters with files again and again, and report what differs. Nothing is changed.",
        epilog="Exit codes: 0 all is in line (--once), 1 a check failed, 2 wrong flags, 3 something differs (--once).",
    )
    add_flags(tool)
    tool.add_switch("--once", help="check once and exit")
    tool.add_value(
        "--interval",
        type=whole_number(INT32_MAX, lowest=1),
        metavar="S",
        help=f"seconds between two checks (default: {DEFAULT_INTERVAL_S})",
    )
    tool.add_value("--metrics", metavar="HOST:PORT", help="address on which to serve /metrics for Prometheus")
    tool.add_value("--metrics-file", metavar="FILE", help="file to replace with the metrics after each check")
    return tool


def drift_main(arguments: Sequence[str]) -> int:
    """Watch until interrupted, or check once."""
    flags = parser()
    options = flags.parse_args(list(arguments))
    if options.once and (options.interval is not None or options.metrics is not None):
        flags.error("--once goes with neither --interval nor --metrics")
    address = None if options.metrics is None else split_address(options.metrics)
    if options.metrics is not None and address is None:
        flags.error(f"--metrics {options.metrics}: expected HOST:PORT")
    if options.once:
        return guarded(_PROG, lambda: Watch(options, flags).check_once())
    return guarded(_PROG, lambda: _serve(Watch(options, flags), address))


class Watch:
    """Repeated checks, the output of changes between them, and the metrics of the last one.

    Args:
        options: Flags of the command.
        flags: Its parser.

    Raises:
        RequestError: ``--prune`` has an unknown kind or an invalid regular expression.
    """

    def __init__(self, options: argparse.Namespace, flags: ToolParser) -> None:
        self._options = options
        self._flags = flags
        self._ownership = ownership_of(options)
        self._shown: object = None
        self._plans: dict[str | None, Plan] = {}
        self._checked_at_s: dict[str | None, float] = {}
        self._failures = 0

    @property
    def interval_s(self) -> int:
        """Seconds between two checks."""
        return self._options.interval or DEFAULT_INTERVAL_S

    def check(self) -> int:
        """Check all clusters, write the result if it differs from the one before, and return the exit code.

        A cluster that cannot be checked keeps its last result and does not hinder the others.
        """
        from klamm.resources.engine import make_plan  # noqa: PLC0415  # wrong flags need no network library

        rules = rules_of(self._options)
        plans: dict[str | None, Plan] = {}
        has_failed = False
        for files in clusters_of(self._options):
            try:
                with connected(self._options, self._flags, files) as admin:
                    plans[files.cluster] = make_plan(admin, files.resources, self._ownership, rules)
            except _FAILURES as error:
                has_failed = True
                self._report(error, "" if files.cluster is None else f" cluster {files.cluster}:")
                plans |= {name: plan for name, plan in self._plans.items() if name == files.cluster}
            else:
                self._checked_at_s[files.cluster] = time.time()
        self._plans = plans  # replaced as a whole, because the server of the metrics reads it in its own thread
        differing = [
            (cluster, [diff for diff in plan.diffs if not diff.is_in_line], plan.failed)
            for cluster, plan in plans.items()
        ]
        if differing != self._shown and plans:
            ends_without_reader = not self._options.once
            show(list(plans.items()), self._options, is_done=False, ends_without_reader=ends_without_reader)
            if ends_without_reader:
                sys.stdout.flush()
            self._shown = differing
        if has_failed or any(plan.failed for plan in plans.values()):
            return EXIT_FAILED
        return EXIT_OK if all(plan.is_in_line for plan in plans.values()) else EXIT_DRIFT

    def check_once(self) -> int:
        """Check all clusters, write the file, and return the exit code."""
        code = self.check()
        self.write_file()
        return code

    def try_check(self) -> None:
        """Check all clusters and write the file. Failures are reported and counted; metrics keep the last result."""
        for step in (self.check, self.write_file):
            try:
                step()
            except _FAILURES as error:
                self._report(error, "")

    def _report(self, error: BaseException, place: str) -> None:
        if is_output_failure(error):
            raise error
        self._failures += 1
        print_error(f"{_PROG}:{place} {escaped(' '.join(explain(error).split()))}")

    def page(self) -> str:
        """Return the metrics."""
        page = Page()
        samples = [
            ({"cluster": cluster or "", "kind": str(diff.key.kind), "resource": diff.key.name}, diff, plan)
            for cluster, plan in self._plans.items()
            for diff in plan.diffs
        ]
        page.family(
            "klamm_drift_keys",
            "gauge",
            "Keys of a declared resource that differ from the files; at least 1 for a missing or surplus resource.",
            [
                (labels, max(len(diff.changes), 0 if diff.is_in_line else 1))
                for labels, diff, plan in samples
                if diff.key.kind not in plan.observation.failures
            ],
        )
        page.family(
            "klamm_drift_rejected",
            "gauge",
            "1 for a declared resource whose state is unknown or whose changes are rejected.",
            [(labels, int(diff.key in plan.failed)) for labels, diff, plan in samples],
        )
        page.family(
            "klamm_drift_last_check_timestamp_seconds",
            "gauge",
            "Time of the last check that succeeded.",
            [({"cluster": cluster or ""}, self._checked_at_s[cluster]) for cluster in self._plans],
        )
        page.family("klamm_drift_failed_checks_total", "counter", "Checks that failed.", [({}, self._failures)])
        return page.text()

    def write_file(self) -> None:
        """Replace the file of ``--metrics-file``, if there is one."""
        if self._options.metrics_file is None:
            return
        path = Path(self._options.metrics_file)
        if path.is_dir():
            raise RequestError(f"--metrics-file {path}: expected a file, not a directory")
        try:
            replace_file(path, self.page())
        except OSError as error:
            raise RequestError(f"--metrics-file {path}: cannot be written: {error.strerror}") from error


def _serve(watch: Watch, address: tuple[str, int] | None) -> int:
    from klamm.mirror.status.live import WatchServer  # noqa: PLC0415  # --once needs none of it

    if address is None:
        _repeat(watch)
    else:
        with WatchServer(*address, {"/metrics": lambda: (CONTENT_TYPE, watch.page())}) as server:
            print_error(f"Metrics: http://{server.address[0]}:{server.address[1]}/metrics")
            _repeat(watch)
    return EXIT_OK


def _repeat(watch: Watch) -> None:
    """Check at each interval until the process is interrupted."""
    while True:
        watch.try_check()
        time.sleep(watch.interval_s)
