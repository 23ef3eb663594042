"""The demonstration: ``python -m examples.demo [--keep]`` in the root of the repository, or ``make demo``."""

from __future__ import annotations

import argparse
import signal
import sys

from examples.demo.scenario import run


def main() -> int:
    """Run the demo. Return 0 if every check passed, else 1."""
    parser = argparse.ArgumentParser(
        prog="examples.demo",
        description="Mirror 336,776 flights between two brokers while everything changes, and check it.",
    )
    parser.add_argument("--keep", action="store_true", help="leave both brokers running and print their addresses")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # shuts down in order, as on Ctrl-C
    return run(keep=options.keep)


if __name__ == "__main__":
    sys.exit(main())
