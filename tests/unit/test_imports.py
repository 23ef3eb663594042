"""Import of a program: without garbage collections, and the collector is as before afterwards."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING
from uuid import uuid4

import pytest

from klamm.imports import import_program

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("is_enabled", [True, False])
def test_import_keeps_the_garbage_collector_as_it_was(
    is_enabled: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given
    name = f"program_{uuid4().hex}"
    (tmp_path / f"{name}.py").write_text("import gc\nCOLLECTS = gc.isenabled()\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    if not is_enabled:
        gc.disable()

    # when
    try:
        program = import_program(name)
        is_enabled_after = gc.isenabled()
    finally:
        gc.enable()

    # then
    assert not program.COLLECTS
    assert is_enabled_after == is_enabled
