"""Shares of the file descriptors, and descriptors reserved for storage."""

from __future__ import annotations

import os
import resource
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from klamm.storage.descriptors import DescriptorShares, SpareDescriptors, raise_limit
from klamm.storage.log.files import FilePool, LogFile
from tests.support.logs import open_count

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.mark.parametrize("limit", [256, 512, 1_024, 4_096, 20_000, 1_048_576])
def test_descriptor_shares_stay_below_the_limit(limit: int) -> None:
    shares = DescriptorShares.of(limit, listeners=3)
    assert shares.log_files + shares.connections + 96 + 3 == limit
    assert shares.log_files >= 40
    assert shares.connections >= 100


def test_soft_limit_is_raised_to_the_hard_limit() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (before[1] - 1, before[1]))
        assert raise_limit() == before[1]
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (before[1], before[1])
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.fixture
def taken() -> Iterator[list[int]]:
    """The descriptors that use up all there are; closed in the end."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(map(int, os.listdir("/proc/self/fd"))) + 8, hard))
    descriptors: list[int] = []
    yield descriptors
    for descriptor in descriptors:
        os.close(descriptor)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def use_up(taken: list[int]) -> None:
    """Open files until the process has no descriptor left."""
    with suppress(OSError):
        while True:
            taken.append(os.open(os.devnull, os.O_RDONLY))


def test_spare_descriptor_opens_a_file_and_is_restored(tmp_path: Path, taken: list[int]) -> None:
    path = tmp_path / "file"
    path.write_text("x")
    spare = SpareDescriptors(2)
    spare.keep()
    use_up(taken)
    for _ in range(10):
        descriptor = spare.open(path, os.O_RDONLY)
        assert os.read(descriptor, 1) == b"x"
        spare.close(descriptor)
        use_up(taken)
    first, second = spare.open(path, os.O_RDONLY), spare.open(path, os.O_RDONLY)
    with pytest.raises(OSError, match="Too many open files"):
        spare.open(path, os.O_RDONLY)
    spare.close(first)
    spare.close(second)
    spare.release()


def test_file_pool_closes_its_own_files_when_descriptors_run_out(tmp_path: Path, taken: list[int]) -> None:
    pool = FilePool(1_000)
    files = [LogFile(pool, tmp_path / str(number)) for number in range(40)]
    use_up(taken)
    for _ in range(3):
        os.close(taken.pop())
    for number, file in enumerate(files):
        file.write([b"%d" % number], len(str(number)), 0)
    assert [file.read(2, 0) for file in files] == [b"%d" % number for number in range(40)]
    assert 1 <= open_count(pool) <= 3  # another thread may have taken some
    pool.close()
