"""AlterConfigs (key 33), v0-2, in the gateway: policies on config changes, and their history."""

from __future__ import annotations

from typing import Final

from klamm.gateway.apis.altered_configs import AlterConfigsApi, policy_of, recorded_of
from klamm.gateway.relay.api import RelayedApi
from klamm.protocol.api import ApiKey
from klamm.protocol.messages.alter_configs import AlterConfigsRequest, AlterConfigsResponse

MESSAGES: Final = AlterConfigsApi(
    api_key=ApiKey.ALTER_CONFIGS,
    request=AlterConfigsRequest,
    response=AlterConfigsResponse,
    entry=AlterConfigsResponse.AlterConfigsResourceResponse,
)
POLICY: Final = policy_of(MESSAGES)
RECORDED: Final = recorded_of(MESSAGES)
API: Final = RelayedApi(key=MESSAGES.api_key, versions=(0, 2))
