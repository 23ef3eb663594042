"""SaslAuthenticate (key 36), v0-2, in the gateway: forwarded and read for the principal, or answered."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from klamm.gateway.relay.api import RelayedApi
from klamm.gateway.relay.filter import Close, Filter, Forward, Reply
from klamm.gateway.relay.logins import OwnLogin
from klamm.protocol.api import ApiKey
from klamm.protocol.messages.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse

if TYPE_CHECKING:
    from klamm.gateway.relay.filter import FilterContext, FilterResult


def _decide(request: SaslAuthenticateRequest, context: FilterContext) -> FilterResult:
    login, token = context.login, bytes(request.auth_bytes)
    if isinstance(login, OwnLogin):
        return _answer(login, token)

    def inspect(response: SaslAuthenticateResponse) -> None:
        login.on_token_response(token, response.error_code, bytes(response.auth_bytes))

    login.on_token()
    return Forward(inspect=inspect)


def _answer(login: OwnLogin, token: bytes) -> FilterResult:
    answer = login.authenticate(token)
    response = SaslAuthenticateResponse(
        error_code=answer.error_code,
        error_message=answer.error_message or "",
        auth_bytes=answer.auth_bytes,
        session_lifetime_ms=answer.session_lifetime_ms,
    )
    delay_s = login.failure_delay_s
    return Reply(response=response) if delay_s is None else Close(response=response, delay_s=delay_s)


API: Final = RelayedApi(
    key=ApiKey.SASL_AUTHENTICATE,
    versions=(0, 2),
    is_before_login=True,
    is_always_admitted=True,
    changes_principal=True,
    filter=Filter(request=SaslAuthenticateRequest, response=SaslAuthenticateResponse, decide=_decide),
)
