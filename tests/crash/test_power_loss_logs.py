"""Partition logs under power cuts at every write, rename, fsync and unlink, one after the other."""

from __future__ import annotations

import asyncio
import logging
import os
import random
from collections import Counter
from typing import TYPE_CHECKING, Final
from uuid import UUID

import pytest

from tests.support.cut_logs import CONFIGS, Ledger, Load, as_found, violations_after
from tests.support.recorded_disk import RecordedDisk

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.long

logger = logging.getLogger(__name__)

_IS_SOAK: Final = bool(os.environ.get("KLAMM_SOAK"))
_SEEDS: Final = range(1, 5 if _IS_SOAK else 2)
_GENERATIONS: Final = 3 if _IS_SOAK else 2
"""Each generation continues after a power cut of the one before, so recoveries are cut as well."""
_STEPS: Final = 40 if _IS_SOAK else 30
_CUTS_CHECKED: Final = 100_000 if _IS_SOAK else 40
"""Number of cuts per generation, at random moments. The soak checks all moments."""


def run_load(
    directory: Path,
    ledger: Ledger,
    chance: random.Random,
    *,
    loses_synced_data: bool = False,
    stops: bool | None = None,
) -> RecordedDisk:
    """Run a load and return its disk, which can be cut at each moment."""
    disk = RecordedDisk(directory)
    disk.loses_synced_data = loses_synced_data
    with disk.recording():
        asyncio.run(Load(directory, disk, ledger, chance).run(_STEPS, stops=stops))
    return disk


def new_ledger(seed: int) -> Ledger:
    return Ledger(topics={name: UUID(int=seed * 1000 + number) for number, name in enumerate(CONFIGS, 1)})


@pytest.mark.parametrize("seed", _SEEDS)
def test_durable_records_survive_power_cuts_at_any_write(
    tmp_path: Path, seed: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL, "klamm")  # recoveries log every cut
    chance = random.Random(seed)
    ledger, directory = new_ledger(seed), tmp_path / "0"
    directory.mkdir()
    checked: Counter[str] = Counter()
    for generation in range(_GENERATIONS):
        # when
        disk = run_load(directory, ledger, chance)
        # then
        moments = range(1, len(disk.journal) + 1)  # the first entry is a note of the topics
        for cut in disk.cuts(sorted(chance.sample(moments, min(_CUTS_CHECKED, len(moments)))), chance):
            wrong = violations_after(cut, ledger, tmp_path / "after")
            assert wrong is None, (generation, cut.moment, cut.operation)
            checked[cut.operation] += 1
        (last,) = disk.cuts([chance.choice(moments)], chance)
        directory = tmp_path / f"{generation + 1}"
        last.write(directory)
        ledger = as_found(last, tmp_path / "after", 101 + generation)
    logger.info("seed %d: %d power cuts survived: %s", seed, checked.total(), dict(checked))
    assert checked.total() >= _GENERATIONS * 40
    assert checked.keys() >= {"pwritev", "before fsync", "after fsync", "open", "replace"}


@pytest.mark.parametrize("is_synced", [True, False])
def test_syncfs_at_shutdown_makes_logs_durable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, *, is_synced: bool
) -> None:
    """It takes the place of every fsync of a log: if it did nothing, the same checks would find losses."""
    caplog.set_level(logging.CRITICAL, "klamm")
    if not is_synced:
        monkeypatch.setattr(RecordedDisk, "syncfs", lambda *_: None)
    chance, ledger, directory = random.Random(7), new_ledger(7), tmp_path / "logs"
    directory.mkdir()
    # when
    disk = run_load(directory, ledger, chance, stops=True)
    # then
    end = len(disk.journal)
    begun = next((at for at, entry in enumerate(disk.journal) if entry.operation == "before syncfs"), end - 1)
    cuts = list(disk.cuts(range(begun - 5, end + 1), chance))
    wrong = [violations_after(cut, ledger, tmp_path / "after") for cut in cuts]
    assert any(wrong) is not is_synced
    assert any(cut.operation == "after syncfs" for cut in cuts) is is_synced


def test_checker_detects_ineffective_fsync(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A control: with an fsync that does nothing the same checks find losses."""
    caplog.set_level(logging.CRITICAL, "klamm")
    ledger = new_ledger(9)
    (tmp_path / "logs").mkdir()

    disk = run_load(tmp_path / "logs", ledger, random.Random(9), loses_synced_data=True)

    end = len(disk.journal) + 1
    cuts = disk.cuts(range(end - 40, end), random.Random(9))
    assert any(violations_after(cut, ledger, tmp_path / "after") for cut in cuts)
