from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from tests.support.data_path import DataPath

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[DataPath]:
    path = DataPath(tmp_path)
    yield path
    asyncio.run(path.logs.close())
