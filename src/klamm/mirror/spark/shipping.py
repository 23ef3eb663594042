"""Archive of klamm's modules for Spark workers on other machines.

``python -m klamm.mirror.spark.shipping klamm.zip`` writes an archive for ``spark-submit --py-files klamm.zip``.
"""

from __future__ import annotations

import sys
import tempfile
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

import klamm
from klamm.mirror.spark.session import is_local

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_PACKAGE = Path(klamm.__file__).parent
_NOT_SHIPPED: Final = (".pyc", ".so", ".pyd")
"""Suffixes of compiled modules. Python cannot load them from an archive, and the worker's Python may differ."""


def ship(spark: SparkSession) -> None:
    """Send this klamm to workers on other machines, so that driver and tasks have the same version.

    Nothing is sent to workers on this machine. Nothing is sent either if klamm itself was loaded from an archive,
    because ``--py-files`` has already sent it.
    """
    context = spark.sparkContext
    if is_local(context.master) or not _PACKAGE.is_dir():
        return
    # Spark serves this file to executors that join later, so it must exist as long as the session.
    directory = Path(tempfile.mkdtemp(prefix="klamm-shipped-", dir=context._temp_dir))
    context.addPyFile(str(write_archive(directory / f"{directory.name}.zip")))


def write_archive(path: Path) -> Path:
    """Write the sources of the running package to an archive for ``--py-files``, and return its path."""
    # Images and packages with reproducible contents have modules from before 1980, which a ZIP archive cannot date.
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, strict_timestamps=False) as archive:
        for module in sorted(_PACKAGE.rglob("*")):
            if module.is_file() and module.suffix not in _NOT_SHIPPED:
                archive.write(module, Path(_PACKAGE.name) / module.relative_to(_PACKAGE))
    return path


if __name__ == "__main__":
    sys.stdout.write(f"{write_archive(Path(sys.argv[1] if sys.argv[1:] else 'klamm.zip'))}\n")
