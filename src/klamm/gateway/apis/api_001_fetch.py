"""Fetch (key 1), v0-15, in the gateway: forwarded unread.

v16 and newer are not served: they have broker addresses behind the records (KIP-951). Clients find a new leader by
Metadata, as they did before. A rejected request gets TOPIC_AUTHORIZATION_FAILED for each partition. The consumers of
Kafka report it, and repeat such requests silently after other errors.
"""

from __future__ import annotations

from typing import Final

from klamm.gateway.relay.api import RelayedApi
from klamm.protocol.api import ApiKey
from klamm.protocol.errors import ErrorCode

API: Final = RelayedApi(
    key=ApiKey.FETCH,
    versions=(0, 15),
    carries_records=True,
    rejected_with=lambda _: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
)
