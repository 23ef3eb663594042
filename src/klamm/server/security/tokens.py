"""Validation of OAUTHBEARER tokens on a listener: Kafka's settings, and a file with the issuer's keys."""

from __future__ import annotations

import logging
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote, urlsplit

from klamm.properties import SettingsError, file_error
from klamm.security.oauth import (
    ClaimRules,
    KeysError,
    OAuthBearerExchange,
    Token,
    check_signed,
    check_unsecured,
    parse_keys,
)
from klamm.server.listeners import setting_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from jwt import PyJWK


logger: Final = logging.getLogger(__name__)

_PACKAGE: Final = "org.apache.kafka.common.security.oauthbearer"
UNSECURED: Final = f"{_PACKAGE}.internals.unsecured.OAuthBearerUnsecuredValidatorCallbackHandler"
SIGNED: Final = (
    f"{_PACKAGE}.OAuthBearerValidatorCallbackHandler",
    f"{_PACKAGE}.secured.OAuthBearerValidatorCallbackHandler",
)
_HANDLER: Final = "sasl.server.callback.handler.class"
_KEYS: Final = "sasl.oauthbearer.jwks.endpoint.url"
_SKEW: Final = "sasl.oauthbearer.clock.skew.seconds"


def token_logins(
    listener: str, configs: Mapping[str, str], options: Mapping[str, str]
) -> Callable[[], OAuthBearerExchange]:
    """Return the function that starts an OAUTHBEARER exchange.

    Args:
        listener: Name of the listener.
        configs: Settings of the broker.
        options: Options of the login module in ``sasl.jaas.config``.

    Raises:
        SettingsError: A setting is not supported, or the keys cannot be read.
    """

    def setting(name: str) -> str | None:
        own = setting_of(configs, listener, f"oauthbearer.{name}")
        return own if own is not None else setting_of(configs, listener, name)

    handler, keys_at = setting(_HANDLER) or UNSECURED, setting(_KEYS)
    if handler == UNSECURED:
        if keys_at is not None:
            raise SettingsError(f"{_KEYS} needs {_HANDLER}={SIGNED[0]}: without it unsigned tokens are accepted")
        rules = _unsecured_rules(options)
        check: Callable[[str], Token] = lambda text: check_unsecured(text, rules, time.time())  # noqa: E731
    elif handler in SIGNED:
        check = _SignedTokens(_keys_file(keys_at), _signed_rules(setting)).check
    else:
        raise SettingsError(
            f"{_HANDLER}={handler}: expected {UNSECURED} or {SIGNED[0]}; other Java classes are not run"
        )

    def rejected(reason: str) -> None:
        logger.info("Listener %s: OAUTHBEARER token rejected: %s", listener, reason)

    return lambda: OAuthBearerExchange(check, now_s=time.time, log=rejected)


class _SignedTokens:
    """Validator of signed tokens. It reloads the file of keys when the file changes."""

    def __init__(self, path: Path, rules: ClaimRules) -> None:
        self._path = path
        self._rules = rules
        self._read_at: tuple[int, int] | None = None
        self._keys: tuple[PyJWK, ...] = ()
        self._refresh()

    def check(self, text: str) -> Token:
        """Validate a token and return its claims.

        Raises:
            TokenError: The token is not valid.
        """
        try:
            self._refresh()
        except SettingsError as error:
            logger.warning("The keys for OAUTHBEARER tokens are not reloaded: %s", error)
        return check_signed(text, self._keys, self._rules, time.time())

    def _refresh(self) -> None:
        try:
            status = self._path.stat()
            if (mark := (status.st_mtime_ns, status.st_size)) != self._read_at:
                text = self._path.read_text(encoding="utf-8")
                self._read_at = mark  # only now: a read that failed is repeated at the next login
                self._keys = parse_keys(text)
        except (OSError, UnicodeDecodeError, KeysError) as error:
            raise SettingsError(f"{_KEYS}: {self._path} cannot be read: {file_error(error)}") from error


def _keys_file(url: str | None) -> Path:
    parts = urlsplit(url or "")
    if parts.scheme != "file" or parts.netloc not in ("", "localhost") or not parts.path:
        raise SettingsError(
            f"{_KEYS}={url or ''}: expected file:///PATH of a JSON Web Key Set; keys are not fetched over a network"
        )
    return Path(unquote(parts.path))


_VERIFIED: Final = (
    ("sasl.oauthbearer.expected.audience", "sasl.oauthbearer.allow.unverified.audience", "audience"),
    ("sasl.oauthbearer.expected.issuer", "sasl.oauthbearer.allow.unverified.issuer", "issuer"),
)
"""Claims that must be verified, by the config with the expected values and the one that waives the check."""


def _signed_rules(setting: Callable[[str], str | None]) -> ClaimRules:
    for expected, unverified, what in _VERIFIED:
        may_be_unverified = (setting(unverified) or "").strip().lower() == "true"
        if not (setting(expected) or "").strip() and not may_be_unverified:
            raise SettingsError(
                f"{expected} is not set: set it, or set {unverified}=true to accept tokens regardless of their {what}"
            )
    audiences = (setting("sasl.oauthbearer.expected.audience") or "").split(",")
    return ClaimRules(
        principal_claim=setting("sasl.oauthbearer.sub.claim.name") or "sub",
        scope_claim=setting("sasl.oauthbearer.scope.claim.name") or "scope",
        clock_skew_s=_number(_SKEW, setting(_SKEW) or "30"),
        issuer=setting("sasl.oauthbearer.expected.issuer") or None,
        audiences=frozenset(filter(None, (each.strip() for each in audiences))),
        needs_issued_at=True,
        checks_audience=True,
    )


def _unsecured_rules(options: Mapping[str, str]) -> ClaimRules:
    def option(name: str, default: str) -> str:
        return options.get(f"unsecuredValidator{name}", "").strip() or default

    return ClaimRules(
        principal_claim=option("PrincipalClaimName", "sub"),
        scope_claim=option("ScopeClaimName", "scope"),
        required_scope=tuple(option("RequiredScope", "").split()),
        clock_skew_s=_number("unsecuredValidatorAllowableClockSkewMs", option("AllowableClockSkewMs", "0")) / 1000,
    )


def _number(name: str, text: str) -> int:
    if not text.isascii() or not text.isdigit():
        raise SettingsError(f"{name}={text}: expected a whole number, 0 or more")
    return int(text)
