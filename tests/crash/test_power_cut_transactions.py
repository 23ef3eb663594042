"""Power cuts over metadata and logs together, with transactions in flight, verified by an independent checker."""

from __future__ import annotations

import os
import random
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final
from unittest import mock

import pytest

from klamm.broker.transactions.decisions import Decisions
from tests.support.long_tests import long_only
from tests.support.power_cut_load import DURABLE, Ledger, live, start_after, violations_of
from tests.support.recorded_disk import RecordedDisk

if TYPE_CHECKING:
    from collections.abc import Iterator

_IS_SOAK: Final = bool(os.environ.get("KLAMM_SOAK"))
_RUNS: Final = 10 if _IS_SOAK else 1
_LIVES: Final = 4 if _IS_SOAK else 2
_CUTS: Final = 60 if _IS_SOAK else 15
_TRANSACTIONS: Final = 8 if _IS_SOAK else 5


@pytest.fixture
def scratch() -> Iterator[Path]:
    """A directory in memory where there is one: the real disk proves nothing here."""
    memory = Path("/dev/shm")
    directory = Path(tempfile.mkdtemp(prefix="klamm-cuts-", dir=memory if memory.is_dir() else None))
    yield directory
    shutil.rmtree(directory)


def power_cuts(scratch: Path, options: tuple[str, ...], *, seed: int) -> tuple[int, list[str]]:
    """Run a broker, cut the power at many moments, continue after one of them. Return the cuts and violations."""
    chance = random.Random(seed)
    ledger, here = Ledger(), scratch / "life-0"
    here.mkdir()
    count, wrong = 0, []
    for life in range(_LIVES):
        disk = RecordedDisk(here)
        live(here, disk, ledger, *options, life=life, transactions=_TRANSACTIONS)
        moments = sorted(chance.randrange(len(disk.journal) + 1) for _ in range(_CUTS))
        going_on = chance.randrange(_CUTS)
        following = scratch / f"life-{life + 1}"
        for number, cut in enumerate(disk.cuts(moments, chance)):
            directory = scratch / "cut"
            cut.write(directory)
            promised = ledger.at(cut)
            try:
                recovered = start_after(directory, promised, *options, opens_late=number % 3 == 0)
                problems = violations_of(promised, recovered, is_durable=options == DURABLE)
            except Exception as error:  # noqa: BLE001  # whatever it is, the start needed help
                problems = [f"{type(error).__name__}: {error}"]
            wrong += [f"seed {seed}, life {life}, moment {cut.moment}: {problem}" for problem in problems]
            shutil.rmtree(directory)
            if number == going_on:
                cut.write(following)
                next_ledger = promised
            count += 1
        shutil.rmtree(here)
        if life + 1 == _LIVES:
            shutil.rmtree(following)
        here, ledger = following, next_ledger
    return count, wrong


@pytest.mark.parametrize("options", [DURABLE, *long_only(())], ids=["flushed", "in the page cache"])
def test_power_cuts_break_no_guarantee(scratch: Path, options: tuple[str, ...]) -> None:
    total = 0
    for run in range(_RUNS):
        directory = scratch / str(run)
        directory.mkdir()
        cuts, wrong = power_cuts(directory, options, seed=random.randrange(2**32))
        total += cuts
        assert not wrong, "\n".join(wrong)
    assert total == _RUNS * _LIVES * _CUTS


def _violations_in(scratch: Path) -> bool:
    """Cut until something is wrong."""
    for run in range(20):
        directory = scratch / str(run)
        directory.mkdir()
        if power_cuts(directory, DURABLE, seed=random.randrange(2**32))[1]:
            return True
    return False


@pytest.mark.long
def test_checker_detects_forgotten_transaction_decisions(scratch: Path) -> None:
    """A control: as it was before decisions outlived the next transaction of their producer."""
    with mock.patch.object(Decisions, "find", return_value=None):
        assert _violations_in(scratch)


@pytest.mark.long
def test_checker_detects_records_without_fsync(scratch: Path) -> None:
    """A control: logs are acknowledged without an fsync."""
    with mock.patch("klamm.storage.log.flusher.fsync_path"):
        assert _violations_in(scratch)
