"""InitProducerId (key 22), v0-6, in the gateway: forwarded unread.

A rejected request gets CLUSTER_AUTHORIZATION_FAILED, because librdkafka repeats it after other errors; and a throttle
time of a second. The Java producer fails its records, and sends the next request at once, more than 5,000 per second.
"""

from __future__ import annotations

from typing import Final

from klamm.gateway.relay.api import RelayedApi
from klamm.protocol.api import ApiKey
from klamm.protocol.errors import ErrorCode

API: Final = RelayedApi(
    key=ApiKey.INIT_PRODUCER_ID,
    versions=(0, 6),
    rejected_with=lambda _: ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    rejected_pause_ms=1000,
)
