"""The services of a broker without listeners, in the event loop of a test."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from klamm.broker.app import BrokerApp
from klamm.broker.cluster import AdvertisedBroker
from klamm.broker.settings import parse_arguments

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from klamm.broker.context import Services


@asynccontextmanager
async def running(data_dir: Path, *options: str) -> AsyncIterator[Services]:
    """Run a broker without listeners."""
    settings = parse_arguments(["--listen", "127.0.0.1:0", "--data-dir", str(data_dir), *options])
    node = AdvertisedBroker(node_id=settings.node_ids[0], host="127.0.0.1", port=9092)
    app = await BrokerApp.start(settings, {settings.listeners[0].name: (node,)})
    try:
        yield app._services
    finally:
        await app.stop()
