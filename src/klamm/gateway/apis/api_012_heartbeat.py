"""Heartbeat (key 12), v0-4, in the gateway: forwarded unread. Client configs measure the interval of a client."""

from __future__ import annotations

from typing import Final

from klamm.gateway.relay.api import RelayedApi
from klamm.protocol.api import ApiKey

API: Final = RelayedApi(key=ApiKey.HEARTBEAT, versions=(0, 4), is_heartbeat=True)
