"""Interface of all SASL mechanisms, and the mechanism PLAIN (RFC 4616)."""

from __future__ import annotations

import hmac
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping

PLAIN: Final = "PLAIN"
_PLAIN_PARTS: Final = 3


class SaslRefusedError(Exception):
    """A login is refused. The message is sent to the client and does not reveal which users exist."""

    def __init__(self, error_message: str) -> None:
        super().__init__(error_message)
        self.error_message = error_message


class InvalidCredentialsError(Exception):
    """A login is refused without a reason. The client learns only the mechanism."""


class SaslExchange(Protocol):
    """One login by one mechanism: client tokens in, server tokens out."""

    @property
    def user_name(self) -> str | None:
        """Return the authenticated user, None before the end of the exchange."""
        ...

    @property
    def lifetime_s(self) -> float | None:
        """Return for how many seconds the credentials are valid, None for no limit."""
        return None

    def step(self, token: bytes) -> bytes:
        """Process a client token and return the server's.

        Raises:
            SaslRefusedError: The client is refused with a message.
            InvalidCredentialsError: The client is refused without a reason.
        """
        ...


class PlainExchange(SaslExchange):
    """PLAIN exchange: one token with user name and password.

    Args:
        users: Passwords by user name.
    """

    def __init__(self, users: Mapping[str, str]) -> None:
        self._users = users
        self._user_name: str | None = None

    @property
    def user_name(self) -> str | None:
        """Return the authenticated user, None before the end of the exchange."""
        return self._user_name

    def step(self, token: bytes) -> bytes:
        """Check name and password. An unknown user takes as long as a wrong password, so timing reveals no user names.

        Raises:
            SaslRefusedError: Name or password is wrong or missing.
        """
        parts = token.decode(errors="replace").split("\x00")
        if len(parts) != _PLAIN_PARTS:
            raise SaslRefusedError(f"Invalid SASL/PLAIN response: expected 3 tokens, got {min(len(parts), 4)}")
        authorization_id, user_name, password = parts
        if not user_name:
            raise SaslRefusedError("Authentication failed: username not specified")
        if not password:
            raise SaslRefusedError("Authentication failed: password not specified")
        expected = self._users.get(user_name)
        # An empty password in the settings never authenticates: the check above rejects it.
        is_right = hmac.compare_digest((expected or "").encode(), password.encode(errors="replace"))
        if expected is None or not is_right:
            raise SaslRefusedError("Authentication failed: Invalid username or password")
        if authorization_id and authorization_id != user_name:
            raise SaslRefusedError(
                "Authentication failed: Client requested an authorization id that is different from username"
            )
        self._user_name = user_name
        return b""
