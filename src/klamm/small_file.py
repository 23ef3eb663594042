"""Small regular files whose paths arrive over the wire, such as a key store or a rules file."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Final

MAX_BYTES: Final = 1024 * 1024
"""Maximum size of a file, as of a Kubernetes Secret or ConfigMap."""


def read_small_file(name: str) -> bytes:
    """Return the content of a regular file.

    A device without an end would fill the memory, and opening a FIFO waits for a writer. Neither is opened.

    Args:
        name: Path of the file.

    Raises:
        OSError: The file cannot be read, is not a regular file or is too large, or the path contains a null byte.
    """
    if "\0" in name:
        raise OSError(errno.EINVAL, "The path contains a null byte")
    if not Path(name).is_file():  # checked first: to open a device may have an effect, as for /dev/watchdog
        Path(name).stat()  # raises if there is no file
        raise OSError(errno.EINVAL, "Not a regular file")
    with open(name, "rb", opener=_open_without_waiting) as file:
        content = file.read(MAX_BYTES + 1) or b""  # None if there is nothing to read now, as in /proc/kmsg
    if len(content) > MAX_BYTES:
        raise OSError(errno.EFBIG, f"Larger than {MAX_BYTES} bytes")
    return content


def _open_without_waiting(name: str, flags: int) -> int:
    """Open a file, also if it has just been replaced by a FIFO."""
    return os.open(name, flags | os.O_NONBLOCK)
