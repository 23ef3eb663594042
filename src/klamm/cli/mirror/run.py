"""Action that runs a mirror: the counterpart of MirrorMaker 2's connect-mirror-maker.sh."""

from __future__ import annotations

import logging
import os
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from klamm.cli import EXIT_FAILED, EXIT_USAGE
from klamm.display import log_to_stderr, one_line
from klamm.extras import require_extra
from klamm.java import JavaNotFoundError, require_java
from klamm.properties import SettingsError, read_properties
from klamm.server.arguments import CommandParser

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence


def main(arguments: Sequence[str]) -> int:
    """Run a mirror until it is stopped. Return 0 on success, 1 if a flow failed and 2 if the file is invalid."""
    options = _parser().parse_args(list(arguments))
    require_extra("spark", feature="klamm mirror")

    from klamm.cli.mirror.display import MirrorDisplay  # noqa: PLC0415 - --help needs none of it
    from klamm.mirror.run import run, stop_on_signals  # noqa: PLC0415

    try:
        read_properties(options.properties)
    except SettingsError as error:
        sys.stderr.write(f"klamm mirror: {one_line(str(error))}\n")
        return EXIT_USAGE
    stop: threading.Event | None = None
    if not options.plan:  # with --plan, the default KeyboardInterrupt ends the run at once
        stop = threading.Event()
        # Never restored: a second signal must not interrupt the shutdown that the first one started.
        stop_on_signals(stop)
    log_to_stderr()
    logging.getLogger("py4j").setLevel(logging.CRITICAL)  # the mirror reports the loss of the JVM with its own message
    # kafka-python logs a line for each attempt to connect; the mirror itself logs the consequences for the flow.
    logging.getLogger("kafka").setLevel(logging.CRITICAL)
    if not options.plan:
        try:
            os.environ["JAVA_HOME"] = str(require_java())
        except JavaNotFoundError as error:
            sys.stderr.write(f"klamm mirror: {error}\n")
            return EXIT_FAILED

    with MirrorDisplay() as display:
        return run(
            options.properties,
            options.clusters,
            plan=options.plan,
            until_caught_up=options.until_caught_up,
            on_progress=display.show,
            stop=stop,
            overrides=_overrides(options),
            strict=options.strict,
            ignore_transforms=options.ignore_transforms,
        )


def _overrides(options: argparse.Namespace) -> dict[str, str]:
    """Return the keys of the properties file that command line flags set, with their values."""
    from klamm.mirror.settings.mirror import CHECKPOINT_DIR, MASTER, METRICS_LISTEN  # noqa: PLC0415 - --help needs none of it

    flags = {METRICS_LISTEN: options.metrics, MASTER: options.master, CHECKPOINT_DIR: options.checkpoint}
    return {key: value for key, value in flags.items() if value is not None}


def _parser() -> CommandParser:
    parser = CommandParser(
        prog="klamm mirror",
        description="Mirror clusters on Spark, as configured in an mm2.properties file. SIGTERM or Ctrl-C "
        "stops it cleanly.",
        epilog="klamm mirror status FILE shows how far a mirror is, klamm mirror verify FILE "
        "compares both sides, klamm mirror cutover GROUP FILE moves a consumer group; klamm mirror pause, resume, "
        "stop, restart, reset, promote and demote change a running mirror: see their --help.",
        allow_abbrev=False,
    )
    parser.add_argument("properties", type=Path, metavar="FILE", help="MirrorMaker's properties file")
    parser.add_argument(
        "--clusters", nargs="+", default=(), metavar="ALIAS", help="serve only flows to these clusters (default: all)"
    )
    parser.add_argument(
        "--plan", action="store_true", help="print what would be created and changed, and change nothing"
    )
    parser.add_argument(
        "--metrics",
        metavar="HOST:PORT",
        help="serve a status page, /status.json and /metrics for Prometheus there (klamm.metrics.listen)",
    )
    parser.add_argument(
        "--master",
        metavar="URL",
        help="where Spark runs, such as spark://host:7077 (spark.master)",
    )
    parser.add_argument(
        "--checkpoint",
        metavar="DIR",
        help="Spark's checkpoint directory (klamm.checkpoint.dir)",
    )
    parser.add_argument("--strict", action="store_true", help="reject keys without an effect, instead of a warning")
    parser.add_argument(
        "--ignore-transforms", action="store_true", help="copy records unchanged although FILE sets transforms"
    )
    parser.add_argument("--until-caught-up", action="store_true", help="end when everything is copied")
    return parser
