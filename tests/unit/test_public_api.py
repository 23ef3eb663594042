"""The public names equal those of docs/public_api.txt."""

from __future__ import annotations

import importlib
from typing import Any

import pytest

from tests.support.scripts import load_script

script: Any = load_script("public_api")


def test_no_public_name_has_disappeared() -> None:
    assert set(script.recorded()) - set(script.names()) == set()


def test_every_exported_name_is_recorded() -> None:
    """Members of classes, fixtures and commands may be newer than the file until the next release records them."""
    modules = [importlib.import_module(name) for name in script.MODULES]
    exported = {f"{module.__name__}.{name}" for module in modules for name in getattr(module, "__all__", ())}
    assert exported - set(script.recorded()) == set(), "run: python scripts/public_api.py"


def test_public_api_script_rejects_removed_names(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    page = tmp_path / "public_api.txt"
    page.write_text("klamm.Broker\nklamm.Removed\n")
    monkeypatch.setattr(script, "PAGE", page)
    with pytest.raises(SystemExit, match=r"klamm\.Removed"):
        script.main()
