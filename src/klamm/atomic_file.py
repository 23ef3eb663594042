"""Files for users and other programs, such as an export or a page of metrics, replaced as a whole."""

from __future__ import annotations

import errno
import shutil
from contextlib import suppress
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pathlib import Path

_IRREPLACEABLE: Final = frozenset({errno.EACCES, errno.EPERM, errno.EBUSY, errno.EROFS})
"""Error numbers of a file whose directory does not allow to replace it."""


def replace_file(path: Path, text: str) -> None:
    """Replace a file atomically, so that readers see either the old or the new content.

    A symbolic link stays: the file is replaced that it points to. A device or a pipe, such as ``/dev/stdout``, is
    written to. A rename would put a regular file in its place, for root also in that of ``/dev/null``. A file keeps its
    permissions, but not its owner. A file that cannot be replaced, because it is a mount point or its directory is not
    writable, is overwritten.

    Raises:
        OSError: The file cannot be written.
    """
    if path.exists() and not path.is_file():
        path.write_text(text, encoding="utf-8")
        return
    path = path.resolve()
    scratch = path.with_name(f".{path.name}.new")
    try:
        scratch.write_text(text, encoding="utf-8")
        if path.exists():
            shutil.copymode(path, scratch)
        scratch.replace(path)
    except OSError as error:
        with suppress(OSError):
            scratch.unlink()
        if error.errno not in _IRREPLACEABLE or not path.exists():
            raise
        path.write_text(text, encoding="utf-8")
