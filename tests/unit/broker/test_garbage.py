"""Garbage collection: long-lived objects are not traversed repeatedly."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING

import pytest

from klamm.broker.main import EVERYTHING_AFTER, EVERYTHING_EVERY_S, GarbageSettings

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(autouse=True)
def as_it_was() -> Iterator[None]:
    thresholds = gc.get_threshold()
    yield
    gc.set_threshold(*thresholds)
    gc.freeze()  # as after the collection of the tests


def test_surviving_objects_are_frozen_until_the_next_full_collection() -> None:
    now_s = 0.0
    settings = GarbageSettings(lambda: now_s)
    settings.apply()
    gc.callbacks.remove(settings.on_collection)
    at_start = gc.get_freeze_count()
    assert at_start > 0
    kept = [[number] for number in range(5_000)]
    settings.on_collection("stop", {"generation": 0})
    assert gc.get_freeze_count() <= at_start
    settings.on_collection("start", {"generation": 1})
    before = gc.get_freeze_count()  # what other tests left behind, and was frozen, is freed meanwhile
    settings.on_collection("stop", {"generation": 1})
    assert gc.get_freeze_count() >= before + len(kept)
    settings.on_collection("start", {"generation": 2})
    assert gc.get_freeze_count() > 0
    now_s = EVERYTHING_EVERY_S
    settings.on_collection("start", {"generation": 2})
    assert gc.get_freeze_count() == 0


def test_full_collection_unfreezes_after_many_survivors() -> None:
    settings = GarbageSettings(lambda: 0.0)
    settings.apply()
    gc.callbacks.remove(settings.on_collection)
    for _ in range(EVERYTHING_AFTER - 1):
        settings.on_collection("stop", {"generation": 1})
    settings.on_collection("start", {"generation": 2})
    assert gc.get_freeze_count() > 0
    settings.on_collection("stop", {"generation": 1})
    settings.on_collection("start", {"generation": 2})
    assert gc.get_freeze_count() == 0
