"""Memory as a machine has it that has run for long: full of page cache, of which some is taken for what comes next.

A virtual machine's host often backs memory only when it is first used, and takes back what was free for some seconds.
Using a gigabyte of that costs seconds of CPU: a broker that is written to paid them where it had got such memory, and
paid nothing where it got what another run had just left behind.
"""

from __future__ import annotations

import atexit
import functools
import tempfile
from pathlib import Path
from typing import Final

import psutil  # type: ignore[import-untyped]

_MEBI: Final = 1024 * 1024
_LEFT_FREE: Final = 1024 * _MEBI
"""Bytes; below some of it the kernel works to free more."""
_CHUNK: Final = 64 * _MEBI


def fill_page_cache() -> None:
    """Have the free memory used, by pages that the kernel lets go without writing: those of a file of zeros."""
    into = bytearray(_CHUNK)
    with Path(_file_of_zeros()).open("rb", buffering=0) as file:
        while psutil.virtual_memory().free > _LEFT_FREE and file.readinto(into):
            pass


@functools.cache
def _file_of_zeros() -> str:
    """Return a file as large as the memory, which takes no room on the disk; kept, so that its pages are."""
    file = tempfile.NamedTemporaryFile(prefix="klamm-bench-zeros-")  # noqa: SIM115 - lives as long as the process
    atexit.register(file.close)
    file.truncate(psutil.virtual_memory().total)
    return file.name
