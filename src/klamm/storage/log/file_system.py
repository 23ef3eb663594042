"""The file system of the data directory, which Linux can make durable as a whole (``syncfs``).

A stop with 20,000 changed logs needs 80,000 fsyncs, each with a barrier on the disk. One ``syncfs`` takes the place of
all of them. It is used only where its result can be trusted:

* since Linux 5.8, whose ``syncfs`` reports errors of earlier writebacks to descriptors that were open at that time;
* on file systems that pass the call and its errors on: ext4 and xfs. An overlay or a network file system need not.
"""

from __future__ import annotations

import errno
import os
import re
from typing import TYPE_CHECKING, Final

from klamm.storage.descriptors import SPARE

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

_TRUSTED: Final = frozenset({"ext4", "xfs"})
_REPORTS_ERRORS_SINCE: Final = (5, 8)
MOUNTS: Final = "/proc/self/mountinfo"


class FileSystem:
    """The file system of a directory, kept open, so that ``sync`` reports every failed write since then.

    Any thread may call ``sync``. An object that is not closed is closed when it is collected.
    """

    def __init__(self, directory: Path) -> None:
        self._descriptor: int | None = None
        self._descriptor = SPARE.open(directory, os.O_RDONLY)
        self._device = os.fstat(self._descriptor).st_dev

    def sync(self, directories: Sequence[Path]) -> list[bool]:
        """Make everything on the file system durable, and return which of the directories are on it.

        Raises:
            OSError: The file system cannot be made durable as a whole, or some write to it has failed.
        """
        if self._descriptor is None or not is_trusted(self._device):
            raise OSError(errno.ENOTSUP, "syncfs is not known to report errors here")
        are_here = [device_of(directory) == self._device for directory in directories]
        syncfs(self._descriptor)
        return are_here

    def __del__(self) -> None:
        """Close the descriptor."""
        self.close()

    def close(self) -> None:
        """Close the descriptor. A second call has no effect."""
        if self._descriptor is not None:
            SPARE.close(self._descriptor)
            self._descriptor = None


def is_trusted(device: int) -> bool:
    """Return whether ``syncfs`` makes everything on a device durable and reports every error."""
    return _kernel_version() >= _REPORTS_ERRORS_SINCE and _type_of(device) in _TRUSTED


def syncfs(descriptor: int) -> None:
    """Make the file system of an open file durable, without the interpreter lock.

    Raises:
        OSError: The system has no ``syncfs``, or a write to the file system has failed.
    """
    import ctypes  # noqa: PLC0415 -- slow to import, and only a stop with many logs needs it

    function = getattr(ctypes.CDLL(None, use_errno=True), "syncfs", None)
    if function is None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    if function(descriptor) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


def _kernel_version() -> tuple[int, ...]:
    """Return the version of Linux, (0,) on other systems."""
    system = os.uname() if hasattr(os, "uname") else None
    found = re.match(r"(\d+)\.(\d+)", system.release) if system is not None and system.sysname == "Linux" else None
    return (0,) if found is None else tuple(map(int, found.groups()))


def _type_of(device: int) -> str | None:
    """Return the type of the file system on a device, None if it is unknown."""
    number = f"{os.major(device)}:{os.minor(device)}"
    try:
        with open(MOUNTS, encoding="utf-8", errors="replace") as mounts:
            for line in mounts:
                fields = line.split()
                if fields[2] == number:
                    return fields[fields.index("-", 6) + 1]
    except (OSError, ValueError, IndexError):
        pass
    return None


def device_of(directory: Path) -> int | None:
    """Return the device of a directory, None if it cannot be read."""
    try:
        return directory.stat().st_dev
    except OSError:
        return None
