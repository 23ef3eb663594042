"""Settings of a listener as the server needs them: TLS, SASL login and the mapping of certificates to principals."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from klamm.lazy_dataclass import dataclass
from klamm.properties import SettingsError, parse_int, parse_list
from klamm.security.certificates import MappingRule, map_subject, parse_mapping_rules, subject_of
from klamm.security.principals import ANONYMOUS, user_principal
from klamm.security.sasl import (
    OAUTHBEARER,
    OAUTHBEARER_MODULE,
    PLAIN,
    PLAIN_MODULE,
    SCRAM_MODULE,
    JaasEntry,
    parse_jaas,
)
from klamm.server.listeners import Listener, setting_of
from klamm.server.security.login import (
    DEFAULT_FAILURE_DELAY_MS,
    DEFAULT_MAX_TOKEN_BYTES,
    SERVED_MECHANISMS,
    Login,
    LoginSettings,
    mechanisms_of,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from klamm.server.security.login import FindScram
    from klamm.server.security.tls import ServerTls

_MAX_INT: Final = 2**31 - 1
_MAX_LONG: Final = 2**63 - 1
_MODULES: Final = {
    PLAIN: PLAIN_MODULE,
    "SCRAM-SHA-256": SCRAM_MODULE,
    "SCRAM-SHA-512": SCRAM_MODULE,
    OAUTHBEARER: OAUTHBEARER_MODULE,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """Settings that apply to every connection of one listener."""

    name: str
    tls: ServerTls | None = None
    login: LoginSettings | None = None
    mapping_rules: tuple[MappingRule, ...] = ()

    def new_login(self) -> Login | None:
        """Return the login state of a new connection; None when the listener has no SASL."""
        return None if self.login is None else Login(self.login)

    def principal_of(self, certificate: bytes | None) -> str | None:
        """Return the principal for a client certificate (DER); None when no mapping rule matches.

        Without a certificate, and where clients log in by SASL, it is ANONYMOUS.
        """
        if self.login is not None or certificate is None:
            return ANONYMOUS
        name = map_subject(subject_of(certificate), self.mapping_rules)
        return None if name is None else user_principal(name)


def open_endpoint(
    listener: Listener, configs: Mapping[str, str], find_scram: FindScram, tls: ServerTls | None = None
) -> Endpoint:
    """Read the settings of a listener.

    Args:
        listener: Listener to read the settings of.
        configs: Settings of the server.
        find_scram: Function that finds the SCRAM credential of a user.
        tls: TLS of the listener; None to create it from the settings if the listener's protocol has TLS.

    Raises:
        SettingsError: A setting of the listener is missing or not allowed.
    """
    if tls is None and listener.protocol.uses_tls:
        from klamm.server.security.tls import server_tls  # noqa: PLC0415 - OpenSSL costs start-up time

        tls = server_tls(listener, configs)
    return Endpoint(
        name=listener.name,
        tls=tls,
        login=_login(listener, configs, find_scram) if listener.protocol.uses_sasl else None,
        mapping_rules=parse_mapping_rules(setting_of(configs, listener.name, "ssl.principal.mapping.rules")),
    )


def _login(listener: Listener, configs: Mapping[str, str], find_scram: FindScram) -> LoginSettings:
    text = setting_of(configs, listener.name, "sasl.enabled.mechanisms") or ""
    names = parse_list(text)
    unknown = [name for name in names if name not in SERVED_MECHANISMS]
    if unknown or not names:
        raise SettingsError(
            f"sasl.enabled.mechanisms={text} (listener {listener.name}): expected some of"
            f" {', '.join(SERVED_MECHANISMS)}" + ("; Kerberos is not served" if "GSSAPI" in names else "")
        )
    entries = {name: jaas_entry(listener.name, name, configs) for name in names}
    plain, oauth = entries.get(PLAIN), entries.get(OAUTHBEARER)
    by_token = None
    if oauth is not None:
        from klamm.server.security.tokens import token_logins  # noqa: PLC0415  # urllib costs start-up time

        by_token = token_logins(listener.name, configs, oauth.options)
    return LoginSettings(
        mechanisms=mechanisms_of(
            names, plain_users={} if plain is None else plain.users, find_scram=find_scram, by_token=by_token
        ),
        max_token_bytes=_number(listener, configs, "sasl.server.max.receive.size", DEFAULT_MAX_TOKEN_BYTES, at_least=1),
        failure_delay_s=_number(
            listener, configs, "connection.failed.authentication.delay.ms", DEFAULT_FAILURE_DELAY_MS, at_least=0
        )
        / 1000,
        max_session_ms={name: _max_session_ms(listener, configs, name) for name in names},
        now=time.monotonic,
    )


def jaas_entry(listener: str, mechanism: str, configs: Mapping[str, str]) -> JaasEntry | None:
    """Return the login module of a mechanism from ``sasl.jaas.config``.

    SCRAM needs none, because its users are stored metadata.
    """
    for setting in (
        f"listener.name.{listener.lower()}.{mechanism.lower()}.sasl.jaas.config",
        f"listener.name.{listener.lower()}.sasl.jaas.config",
        "sasl.jaas.config",
    ):
        if (text := configs.get(setting)) is None:
            continue
        entry = parse_jaas(text, setting=setting)
        if entry.module == _MODULES[mechanism]:
            return entry
        if entry.module not in _MODULES.values():
            raise SettingsError(
                f"{setting}: login module {entry.module} is not known, only {', '.join(sorted(set(_MODULES.values())))}"
            )
    if mechanism == PLAIN:
        raise SettingsError(
            f"Listener {listener} enables PLAIN but names no users: set"
            f' listener.name.{listener.lower()}.plain.sasl.jaas.config={PLAIN_MODULE} required user_NAME="PASSWORD";'
        )
    if mechanism == OAUTHBEARER:
        raise SettingsError(
            f"Listener {listener} enables OAUTHBEARER without a login module: set"
            f" listener.name.{listener.lower()}.oauthbearer.sasl.jaas.config={OAUTHBEARER_MODULE} required;"
        )
    return None


def _max_session_ms(listener: Listener, configs: Mapping[str, str], mechanism: str) -> int:
    """Return ``connections.max.reauth.ms`` of a mechanism: with the mechanism as prefix if set, else without it."""
    name = "connections.max.reauth.ms"
    own = f"{mechanism.lower()}.{name}"
    if setting_of(configs, listener.name, own) is not None:
        name = own
    return _number(listener, configs, name, 0, at_least=-_MAX_LONG, at_most=_MAX_LONG)


def _number(
    listener: Listener, configs: Mapping[str, str], name: str, default: int, *, at_least: int, at_most: int = _MAX_INT
) -> int:
    text = setting_of(configs, listener.name, name)
    return default if text is None else parse_int(name, text, at_least=at_least, at_most=at_most)
