"""Command ``klamm demo``: show and check all features on real data."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

from klamm.cli.arguments import ToolParser
from klamm.extras import require_extra

if TYPE_CHECKING:
    from collections.abc import Sequence


def main(arguments: Sequence[str]) -> int:
    """Run the demo. Return 0 if every check passed, else 1."""
    parser = ToolParser(
        prog="klamm demo",
        description="Mirror 336,776 flights between two brokers while everything changes, and check it.",
    )
    parser.add_argument("--keep", action="store_true", help="leave both brokers running and print their addresses")
    options = parser.parse_args(list(arguments))
    require_extra("spark", feature="klamm demo")

    from klamm.demo.scenario import run  # noqa: PLC0415 - --help needs none of it

    signal.signal(signal.SIGTERM, signal.default_int_handler)  # shuts down in order, as on Ctrl-C
    return run(keep=options.keep)
