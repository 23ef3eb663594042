"""TxnOffsetCommit (key 28), v0-6, in the gateway: policies on the names of groups."""

from __future__ import annotations

from typing import Final

from klamm.gateway.policies.policy_api import group_policy
from klamm.gateway.relay.api import RelayedApi
from klamm.protocol.api import ApiKey
from klamm.protocol.messages.txn_offset_commit import TxnOffsetCommitRequest, TxnOffsetCommitResponse
from klamm.server.attempt import ApiError

POLICY: Final = group_policy(
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
    lambda error: ApiError(error.error_code, None),
    throttles=False,
)
API: Final = RelayedApi(key=ApiKey.TXN_OFFSET_COMMIT, versions=(0, 6))
