"""SaslAuthenticate (key 36), v0-2: one token of a login (KIP-152).

The response to a failed login is delayed, and then the connection is closed. v1 returns the session lifetime (KIP-368)
if ``connections.max.reauth.ms`` or the token limits it. Allowed before login.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from klamm.protocol.api import Api, ApiKey
from klamm.protocol.errors import ErrorCode
from klamm.protocol.messages.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from klamm.server.route import Route
from klamm.server.security.login import TokenAnswer

if TYPE_CHECKING:
    from klamm.server.context import HandlerContext

API: Final = Api(key=ApiKey.SASL_AUTHENTICATE, min_version=0, max_version=2)
_NOT_HERE: Final = TokenAnswer(
    error_code=ErrorCode.ILLEGAL_SASL_STATE,
    error_message="SaslAuthenticate request received after successful authentication",
)


async def handle(request: SaslAuthenticateRequest, context: HandlerContext) -> SaslAuthenticateResponse:
    """Process a token of the login."""
    login = context.session.login
    answer = _NOT_HERE if login is None else login.authenticate(bytes(request.auth_bytes))
    return SaslAuthenticateResponse(
        error_code=answer.error_code,
        error_message=answer.error_message or "",  # as in Kafka, the message of a success is not null
        auth_bytes=answer.auth_bytes,
        session_lifetime_ms=answer.session_lifetime_ms,
    )


ROUTE: Final = Route(api=API, request=SaslAuthenticateRequest, handle=handle)
