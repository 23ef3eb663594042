"""OffsetForLeaderEpoch (key 23), v0-4, in the gateway: forwarded unread.

A rejected request gets TOPIC_AUTHORIZATION_FAILED for each partition: consumers repeat it silently after other errors.
"""

from __future__ import annotations

from typing import Final

from klamm.gateway.relay.api import RelayedApi
from klamm.protocol.api import ApiKey
from klamm.protocol.errors import ErrorCode

API: Final = RelayedApi(
    key=ApiKey.OFFSET_FOR_LEADER_EPOCH, versions=(0, 4), rejected_with=lambda _: ErrorCode.TOPIC_AUTHORIZATION_FAILED
)
