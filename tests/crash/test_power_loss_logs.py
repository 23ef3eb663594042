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

from tests.support.cut_logs import CONFIGS, Ledger, Load, as_found, what_is_wrong_after
from tests.support.power_cut import PowerCutDisk, write_image

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.cut_logs import Cut

logger = logging.getLogger(__name__)

_IS_SOAK: Final = bool(os.environ.get("KLAMM_SOAK"))
_SEEDS: Final = range(1, 5 if _IS_SOAK else 3)
_GENERATIONS: Final = 3 if _IS_SOAK else 2
"""Each one goes on with what a power cut of the one before has left, so that recoveries are cut as well."""
_STEPS: Final = 40 if _IS_SOAK else 30
_CUTS_CHECKED: Final = 100_000 if _IS_SOAK else 40
"""Of each generation, chosen at random; the soak checks all."""


def run_load(directory: Path, ledger: Ledger, seed: int, *, loses_synced_data: bool = False) -> list[Cut]:
    """Run a load with a power cut at each moment; return what each would leave."""
    chance = random.Random(seed)
    disk = PowerCutDisk(directory, chance)
    disk.loses_synced_data = loses_synced_data

    async def run() -> list[Cut]:
        load = Load(directory, disk, ledger, chance)
        await load.run(_STEPS)
        return load.cuts

    with disk.recording():
        return asyncio.run(run())


def new_ledger(seed: int) -> Ledger:
    return Ledger(topics={name: UUID(int=seed * 1000 + number) for number, name in enumerate(CONFIGS, 1)})


@pytest.mark.parametrize("seed", _SEEDS)
def test_what_is_durable_survives_power_cuts_at_any_moment(
    tmp_path: Path, seed: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL, "klamm")  # what recoveries say is of no interest here
    chance = random.Random(seed)
    ledger, directory = new_ledger(seed), tmp_path / "0"
    directory.mkdir()
    checked: Counter[str] = Counter()
    for generation in range(_GENERATIONS):
        # when
        cuts = run_load(directory, ledger, seed * 100 + generation)
        # then
        for cut in chance.sample(cuts, min(_CUTS_CHECKED, len(cuts))):
            assert what_is_wrong_after(cut, ledger, tmp_path / "after") is None, (generation, cut.moment)
            checked[cut.moment] += 1
        last = chance.choice(cuts)
        directory = tmp_path / f"{generation + 1}"
        write_image(last.image, tmp_path / "after")
        write_image(last.image, directory)
        ledger = as_found(last, tmp_path / "after", 101 + generation)
    logger.info("seed %d: %d power cuts survived: %s", seed, checked.total(), dict(checked))
    assert checked.total() >= _GENERATIONS * 40
    assert checked.keys() >= {"pwritev", "before fsync", "after fsync", "open", "replace"}


def test_the_checker_notices_a_disk_that_loses_what_was_synced(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A control: with an fsync that does nothing the same checks find losses."""
    caplog.set_level(logging.CRITICAL, "klamm")
    ledger = new_ledger(9)
    (tmp_path / "logs").mkdir()

    cuts = run_load(tmp_path / "logs", ledger, 9, loses_synced_data=True)

    assert any(what_is_wrong_after(cut, ledger, tmp_path / "after") for cut in cuts[-40:])
