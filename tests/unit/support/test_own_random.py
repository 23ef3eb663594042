from __future__ import annotations

import random
import threading
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

from hypothesis.internal.conjecture import providers

from tests.support.own_random import draw_no_constants_of_modules, seed

if TYPE_CHECKING:
    import pytest


def test_random_numbers_of_another_thread_leave_the_state_unchanged() -> None:
    before, drawn = random.getstate(), list[float]()
    thread = threading.Thread(target=lambda: drawn.append(random.uniform(1, 2)))
    thread.start()
    thread.join()
    assert 1 <= drawn[0] <= 2
    assert random.getstate() == before
    random.random()
    assert random.getstate() != before


def test_each_test_draws_the_same_numbers_in_each_run() -> None:
    drawn = []
    for name in ("a", "a", "b"):
        seed(cast("pytest.Item", SimpleNamespace(nodeid=name)))
        drawn.append(random.random())
    assert drawn[0] == drawn[1] != drawn[2]


def test_examples_do_not_depend_on_imported_modules(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(providers, "_get_local_constants", providers._get_local_constants)
    draw_no_constants_of_modules()
    provider = providers.HypothesisProvider(None)
    assert len(provider._local_constants) == 0
