"""What all SASL mechanisms have in common, and the simplest of them: PLAIN (RFC 4616)."""

from __future__ import annotations

import hmac
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping

PLAIN: Final = "PLAIN"
_PLAIN_PARTS: Final = 3


class SaslRefusedError(Exception):
    """A login is refused; the message is for the client and tells nothing about who exists."""

    def __init__(self, error_message: str) -> None:
        super().__init__(error_message)
        self.error_message = error_message


class InvalidCredentialsError(Exception):
    """A login is refused without a reason; the client hears only which mechanism it was."""


class SaslExchange(Protocol):
    """One login by one mechanism: tokens in, tokens out."""

    @property
    def user_name(self) -> str | None:
        """Who logged in, None before the end."""
        ...

    @property
    def lifetime_s(self) -> float | None:
        """How long what the client has shown is good, in seconds; None: for ever."""
        return None

    def step(self, token: bytes) -> bytes:
        """Take what the client says, return what is said back.

        Raises:
            SaslRefusedError: The client is refused with a message.
            InvalidCredentialsError: The client is refused.
        """
        ...


class PlainExchange(SaslExchange):
    """PLAIN: one token with name and password.

    Args:
        users: passwords by user name.
    """

    def __init__(self, users: Mapping[str, str]) -> None:
        self._users = users
        self._user_name: str | None = None

    @property
    def user_name(self) -> str | None:
        """Who logged in, None before the end."""
        return self._user_name

    def step(self, token: bytes) -> bytes:
        """Check name and password; an unknown user takes as long as a wrong password.

        Raises:
            SaslRefusedError: They are wrong, or not there.
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
        # An empty password in the settings lets nobody in: it never gets past the check above.
        is_right = hmac.compare_digest((expected or "").encode(), password.encode(errors="replace"))
        if expected is None or not is_right:
            raise SaslRefusedError("Authentication failed: Invalid username or password")
        if authorization_id and authorization_id != user_name:
            raise SaslRefusedError(
                "Authentication failed: Client requested an authorization id that is different from username"
            )
        self._user_name = user_name
        return b""
