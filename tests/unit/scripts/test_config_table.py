"""The page docs/configs.md describes every config and is up to date."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest

from klamm.configs.definitions import topic_configs
from tests.support.scripts import load_script

ROOT = Path(__file__).resolve().parents[3]


@cache
def script() -> Any:
    """Load scripts/config_table.py, which is no package."""
    return load_script("config_table")


def effects() -> str:
    return str(script().EFFECTS.read_text(encoding="utf-8"))


def test_page_matches_the_script_output() -> None:
    assert script().PAGE.read_text(encoding="utf-8") == script().build_page(effects())


def test_every_topic_config_has_a_row() -> None:
    page = script().PAGE.read_text(encoding="utf-8")
    assert all(f"| `{name}`" in page for name in topic_configs())


def test_config_without_description_is_an_error() -> None:
    lines = [line for line in effects().splitlines() if not line.startswith("segment.ms =")]
    with pytest.raises(KeyError):
        script().build_page("\n".join(lines))


def test_description_of_unknown_config_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"No topic config is called no\.such"):
        script().build_page(effects().replace("[topic]\n", "[topic]\nno.such = Yes.\n"))
