"""Distribution of the tests to the workers of pytest-xdist.

A worker runs whole files (``--dist loadfile``), so the fixtures of a module are made once. The files that take longest
come first, so that no worker is left alone with one of them at the end. Files that share three nodes of real Kafka are
run by one worker, so that those nodes are started once.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import TYPE_CHECKING, Final

from xdist.scheduler import LoadFileScheduling  # type: ignore[import-untyped]

if TYPE_CHECKING:
    import pytest

_ROOT: Final = Path(__file__).resolve().parents[2]
_LONGEST: Final = (
    "spark/test_mirror_rig.py",
    "interop/test_mirror_kafka.py",
    "spark/test_mirror_on_spark.py",
    "spark/test_registrations.py",
    "interop/test_client_families.py",
    "spark/test_mirror_chaos.py",
    "spark/test_writing.py",
    "spark/test_mirror_interrupted.py",
    "interop/test_lost_nodes.py",
    "spark/test_mirror_security.py",
    "interop/test_mirror_takeover.py",
    "interop/test_wheel.py",
    "spark/test_registrations_killed.py",
    "spark/test_mirror_on_a_cluster.py",
)
"""Paths below ``tests``, the longest first."""
_DIRECTORIES: Final = ("spark", "crash", "interop")
"""Directories of the other files that take long."""
_SHARED: Final = "real_kafka_3"
"""Fixture of three nodes."""


def rank(item: pytest.Item) -> int:
    """Return the rank of a test's file. Lower ranks run first."""
    file = item.path.relative_to(_ROOT / "tests")
    if file.as_posix() in _LONGEST:
        return _LONGEST.index(file.as_posix())
    directories = [*_DIRECTORIES, file.parts[0]]
    return len(_LONGEST) + directories.index(file.parts[0])


class FileScheduling(LoadFileScheduling):  # type: ignore[misc]
    """Whole files for each worker, and the files that share three nodes of real Kafka for one worker."""

    def _split_scope(self, nodeid: str) -> str:
        return _group(nodeid.partition("::")[0])


@functools.cache
def _group(file: str) -> str:
    return _SHARED if _SHARED in (_ROOT / file).read_text(encoding="utf-8") else file
