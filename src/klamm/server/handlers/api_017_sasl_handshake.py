"""SaslHandshake (key 17), v0-1: selects the mechanism of a login (KIP-43).

After v0, tokens are sent without a request header; after v1, in SaslAuthenticate requests (KIP-152). For a mechanism
that is not enabled, the response lists those that are, and the connection is closed. ILLEGAL_SASL_STATE on a listener
without SASL and during a login. Allowed before login.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from klamm.protocol.api import Api, ApiKey
from klamm.protocol.errors import ErrorCode
from klamm.protocol.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse
from klamm.server.route import Route

if TYPE_CHECKING:
    from klamm.server.context import HandlerContext

API: Final = Api(key=ApiKey.SASL_HANDSHAKE, min_version=0, max_version=1)


async def handle(request: SaslHandshakeRequest, context: HandlerContext) -> SaslHandshakeResponse:
    """Select the mechanism."""
    login = context.session.login
    if login is None:
        return SaslHandshakeResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE)
    error_code = login.handshake(request.mechanism, context.api_version)
    if error_code == ErrorCode.ILLEGAL_SASL_STATE:
        return SaslHandshakeResponse(error_code=error_code)
    return SaslHandshakeResponse(error_code=error_code, mechanisms=list(login.settings.mechanisms))


ROUTE: Final = Route(api=API, request=SaslHandshakeRequest, handle=handle)
