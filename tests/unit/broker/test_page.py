"""Warnings of the broker's status page."""

from __future__ import annotations

import asyncio
import shutil
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from klamm.broker.page import BrokerPage

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("used", "free", "warnings"),
    [
        (94, 6, []),
        (96, 4, ["The disk of the data directory has only 4 B left"]),
        pytest.param(95, 0, ["The disk of the data directory has only 0 B left"], id="5 % are reserved for root"),
    ],
)
def test_page_warns_before_the_disk_is_full(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, used: int, free: int, warnings: list[str]
) -> None:
    # given
    services: Any = SimpleNamespace(
        logs=SimpleNamespace(offline_count=0, flush_failures=0),
        client_configs=SimpleNamespace(skipped=()),
        configs=SimpleNamespace(broker_value=lambda _: str(tmp_path)),
    )
    nothing: Any = None
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(total=100, used=used, free=free))
    # when
    page = BrokerPage(services, nothing, nothing)
    # then
    assert asyncio.run(page._warnings()) == warnings
