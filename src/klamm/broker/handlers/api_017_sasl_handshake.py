"""SaslHandshake (key 17), v0-1: which mechanism a login will use (KIP-43).

After v0 the tokens come bare, after v1 in SaslAuthenticate (KIP-152). A mechanism that is not enabled is answered
with those that are, and the connection is closed. ILLEGAL_SASL_STATE where nobody logs in, and in the middle of a
login. Answered before login.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from klamm.broker.route import Route
from klamm.protocol.api import Api, ApiKey
from klamm.protocol.errors import ErrorCode
from klamm.protocol.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse

if TYPE_CHECKING:
    from klamm.broker.context import RequestContext

API: Final = Api(key=ApiKey.SASL_HANDSHAKE, min_version=0, max_version=1)


async def handle(request: SaslHandshakeRequest, context: RequestContext) -> SaslHandshakeResponse:
    """Let the login choose."""
    login = context.session.login
    if login is None:
        return SaslHandshakeResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE)
    error_code = login.handshake(request.mechanism, context.api_version)
    if error_code == ErrorCode.ILLEGAL_SASL_STATE:
        return SaslHandshakeResponse(error_code=error_code)
    return SaslHandshakeResponse(error_code=error_code, mechanisms=list(login.settings.mechanisms))


ROUTE: Final = Route(api=API, request=SaslHandshakeRequest, handle=handle)
