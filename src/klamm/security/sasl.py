"""Interface of all SASL mechanisms, the mechanism PLAIN (RFC 4616), and the parser for ``sasl.jaas.config``."""

from __future__ import annotations

import hmac
import re
from dataclasses import field
from typing import TYPE_CHECKING, Final, Protocol

from klamm.lazy_dataclass import dataclass
from klamm.properties import SettingsError

if TYPE_CHECKING:
    from collections.abc import Mapping

PLAIN: Final = "PLAIN"
OAUTHBEARER: Final = "OAUTHBEARER"
_PLAIN_PARTS: Final = 3
PLAIN_MODULE: Final = "org.apache.kafka.common.security.plain.PlainLoginModule"
SCRAM_MODULE: Final = "org.apache.kafka.common.security.scram.ScramLoginModule"
OAUTHBEARER_MODULE: Final = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"
_CONTROL_FLAGS: Final = frozenset({"required", "requisite", "sufficient", "optional"})
_USER_PREFIX: Final = "user_"
_TOKEN: Final = re.compile(r"""\s*(?:(?P<punct>[=;])|"(?P<double>(?:[^"\\]|\\.)*)"|'(?P<single>(?:[^'\\]|\\.)*)'"""
                           r"""|(?P<word>[^\s=;"']+))""", re.DOTALL)  # fmt: skip
_ESCAPE: Final = re.compile(r"\\(.)", re.DOTALL)


class SaslRejectedError(Exception):
    """A login is rejected. The message is sent to the client and does not reveal which users exist."""

    def __init__(self, error_message: str) -> None:
        super().__init__(error_message)
        self.error_message = error_message


class InvalidCredentialsError(Exception):
    """A login is rejected without a reason. The client learns only the mechanism."""


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
            SaslRejectedError: The client is rejected with a message.
            InvalidCredentialsError: The client is rejected without a reason.
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
            SaslRejectedError: Name or password is wrong or missing.
        """
        parts = token.decode(errors="replace").split("\x00")
        if len(parts) != _PLAIN_PARTS:
            raise SaslRejectedError(f"Invalid SASL/PLAIN response: expected 3 tokens, got {min(len(parts), 4)}")
        authorization_id, user_name, password = parts
        if not user_name:
            raise SaslRejectedError("Authentication failed: username not specified")
        if not password:
            raise SaslRejectedError("Authentication failed: password not specified")
        expected = self._users.get(user_name)
        # An empty password in the settings never authenticates: the check above rejects it.
        is_right = hmac.compare_digest((expected or "").encode(), password.encode(errors="replace"))
        if expected is None or not is_right:
            raise SaslRejectedError("Authentication failed: Invalid username or password")
        if authorization_id and authorization_id != user_name:
            raise SaslRejectedError(
                "Authentication failed: Client requested an authorization id that is different from username"
            )
        self._user_name = user_name
        return b""


@dataclass(frozen=True, slots=True, kw_only=True)
class JaasEntry:
    """A login module and its options."""

    module: str
    options: Mapping[str, str] = field(repr=False)

    @property
    def users(self) -> dict[str, str]:
        """Return passwords by user name, from the options ``user_NAME``."""
        return {
            name.removeprefix(_USER_PREFIX): value
            for name, value in self.options.items()
            if name.startswith(_USER_PREFIX) and name != _USER_PREFIX
        }


def parse_jaas(text: str, *, setting: str) -> JaasEntry:
    """Parse one entry. Error messages never repeat the text, because it holds passwords.

    Args:
        text: Value of the setting.
        setting: Name of the setting, for messages.

    Raises:
        SettingsError: The text is not a JAAS entry.
    """
    tokens = _tokens(text, setting)
    minimum = 3
    if len(tokens) < minimum or tokens[-1] != (";", True):
        raise SettingsError(f'{setting}: expected MODULE required name="value" ... ending in a semicolon')
    (module, module_is_punct), (flag, flag_is_punct) = tokens[:2]
    if module_is_punct or flag_is_punct or flag.lower() not in _CONTROL_FLAGS:
        raise SettingsError(f"{setting}: expected a login module and one of {', '.join(sorted(_CONTROL_FLAGS))}")
    options: dict[str, str] = {}
    rest = tokens[2:-1]
    for position in range(0, len(rest), 3):
        group = rest[position : position + 3]
        if [is_punct for _, is_punct in group] != [False, True, False] or group[1][0] != "=":
            raise SettingsError(f'{setting}: option {position // 3 + 1} is not of the form name="value"')
        options[group[0][0]] = group[2][0]
    return JaasEntry(module=module, options=options)


def _tokens(text: str, setting: str) -> list[tuple[str, bool]]:
    """Return each token with whether it is punctuation."""
    tokens: list[tuple[str, bool]] = []
    position, end = 0, len(text.rstrip())
    while position < end:
        match = _TOKEN.match(text, position)
        if match is None:
            raise SettingsError(f"{setting}: a quoted value does not end")
        position = match.end()
        if (punct := match["punct"]) is not None:
            tokens.append((punct, True))
        elif (word := match["word"]) is not None:
            tokens.append((word, False))
        else:
            quoted = match["double"] if match["double"] is not None else match["single"]
            tokens.append((_ESCAPE.sub(r"\1", quoted), False))
    return tokens
