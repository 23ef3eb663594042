"""Entry point of the installed program ``klamm``.

Ctrl-C while the command line is being imported ends the process without a traceback. Afterwards the command line itself
handles an interrupt.

At the end all objects are frozen, so that the collections with which Python ends a process do not visit them. These
would take a tenth of the CPU time of a short command.
"""

from __future__ import annotations

import gc
import signal


def main() -> int:
    """Import and run the command line; return its exit code."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    from klamm.cli import main as run  # noqa: PLC0415 - see above

    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        return run()
    finally:
        gc.freeze()
