"""Keys that a running mirror reads again."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from klamm.mirror.settings.mirror import LiveKeys, parse_settings
from klamm.properties import SettingsError, parse_properties

if TYPE_CHECKING:
    from pathlib import Path

KEY = "klamm.max.bytes.per.second"
FILE = """clusters=A,B,C
A.bootstrap.servers=a:1
B.bootstrap.servers=b:1
C.bootstrap.servers=c:1
A->B.enabled=true
A->C.enabled=true
"""


def test_changed_file_gives_new_limits(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "mm2.properties"
    flows = parse_settings(parse_properties(FILE)).flows
    live_keys = LiveKeys(path)
    contents = {
        "": {},
        f"{KEY}=100": {"A->B": 100, "A->C": 100},
        f"{KEY}=100\nA->B.{KEY}=7": {"A->B": 7, "A->C": 100},
        f"{KEY}=fast": None,
        f"A->C.{KEY}=8": {"A->C": 8},
    }
    for more, limits in contents.items():
        path.write_text(FILE + more)
        assert live_keys.limits(flows) == limits
    path.unlink()
    assert live_keys.limits(flows) is live_keys.limits(flows) is None
    assert [record.getMessage() for record in caplog.records] == [
        f"{path}: the current {KEY} is kept: {KEY}=fast: expected a whole number from 1 to 9223372036854775807",
        f"{path}: the current {KEY} is kept: {path}: cannot be read: No such file or directory",
    ]


def test_overrides_have_precedence(tmp_path: Path) -> None:
    path = tmp_path / "mm2.properties"
    path.write_text(f"{FILE}{KEY}=100")
    flows = parse_settings(parse_properties(FILE)).flows
    assert LiveKeys(path, {KEY: "5"}).limits(flows) == {"A->B": 5, "A->C": 5}


def test_limit_of_zero_is_rejected() -> None:
    with pytest.raises(SettingsError, match=r"A->B\.klamm\.max\.bytes\.per\.second=0: expected a whole number from 1"):
        parse_settings(parse_properties(f"{FILE}A->B.{KEY}=0"))
