"""SaslHandshake (key 17), v1, in the gateway: forwarded, or answered if logins end at the gateway.

v0 is not served: its tokens come without a request header. v1 dates from Kafka 1.0.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from klamm.gateway.relay.api import RelayedApi
from klamm.gateway.relay.filter import Filter, Forward, Reply
from klamm.gateway.relay.logins import OwnLogin
from klamm.protocol.api import ApiKey
from klamm.protocol.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse

if TYPE_CHECKING:
    from klamm.gateway.relay.filter import FilterContext, FilterResult


def _decide(request: SaslHandshakeRequest, context: FilterContext) -> FilterResult:
    login, mechanism = context.login, request.mechanism
    if isinstance(login, OwnLogin):
        error_code, mechanisms = login.handshake(mechanism, context.api_version)
        return Reply(response=SaslHandshakeResponse(error_code=error_code, mechanisms=mechanisms))

    def inspect(response: SaslHandshakeResponse) -> SaslHandshakeResponse | None:
        replaced = login.on_handshake_response(mechanism, response.error_code, response.mechanisms)
        return None if replaced is None else SaslHandshakeResponse(error_code=replaced[0], mechanisms=replaced[1])

    login.on_handshake(mechanism)
    return Forward(inspect=inspect)


API: Final = RelayedApi(
    key=ApiKey.SASL_HANDSHAKE,
    versions=(1, 1),
    is_before_login=True,
    is_always_admitted=True,
    filter=Filter(request=SaslHandshakeRequest, response=SaslHandshakeResponse, decide=_decide),
)
