"""OffsetCommit (key 8), v0-10, in the gateway: policies on the names of groups.

v9 is the last version with the names of topics. With a policy on flows, clients get no later one.
"""

from __future__ import annotations

from typing import Final

from klamm.gateway.policies.policy_api import group_policy
from klamm.gateway.relay.api import RelayedApi
from klamm.protocol.api import ApiKey
from klamm.protocol.messages.offset_commit import OffsetCommitRequest, OffsetCommitResponse
from klamm.server.attempt import ApiError

POLICY: Final = group_policy(
    OffsetCommitRequest,
    OffsetCommitResponse,
    lambda error: ApiError(error.error_code, None),
    throttles=False,
    last_version=9,
)
API: Final = RelayedApi(key=ApiKey.OFFSET_COMMIT, versions=(0, 10))
