"""The page docs/configs.md says what every config does, and is current."""

from __future__ import annotations

import importlib.util
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from klamm.configs.definitions import topic_configs

ROOT = Path(__file__).resolve().parents[3]


@cache
def script() -> Any:
    """Load scripts/config_table.py, which is no package."""
    spec = importlib.util.spec_from_file_location("klamm_scripts_config_table", ROOT / "scripts" / "config_table.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def effects() -> str:
    return str(script().EFFECTS.read_text(encoding="utf-8"))


def test_the_page_is_what_the_script_writes() -> None:
    assert script().PAGE.read_text(encoding="utf-8") == script().build_page(effects())


def test_every_topic_config_has_a_row() -> None:
    page = script().PAGE.read_text(encoding="utf-8")
    assert all(f"| `{name}`" in page for name in topic_configs())


def test_a_config_without_a_sentence_is_an_error() -> None:
    lines = [line for line in effects().splitlines() if not line.startswith("segment.ms =")]
    with pytest.raises(KeyError):
        script().build_page("\n".join(lines))


def test_a_sentence_without_a_config_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"No topic config is called no\.such"):
        script().build_page(effects().replace("[topic]\n", "[topic]\nno.such = Yes.\n"))
