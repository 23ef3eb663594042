"""IncrementalAlterConfigs (key 44), v0-1, in the gateway: policies on config changes, and their history."""

from __future__ import annotations

from typing import Final

from klamm.gateway.apis.altered_configs import AlterConfigsApi, policy_of, recorded_of
from klamm.gateway.relay.api import RelayedApi
from klamm.protocol.api import ApiKey
from klamm.protocol.messages.incremental_alter_configs import (
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)

MESSAGES: Final = AlterConfigsApi(
    api_key=ApiKey.INCREMENTAL_ALTER_CONFIGS,
    request=IncrementalAlterConfigsRequest,
    response=IncrementalAlterConfigsResponse,
    entry=IncrementalAlterConfigsResponse.AlterConfigsResourceResponse,
)
POLICY: Final = policy_of(MESSAGES)
RECORDED: Final = recorded_of(MESSAGES)
API: Final = RelayedApi(key=MESSAGES.api_key, versions=(0, 1))
