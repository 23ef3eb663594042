"""Security settings of a client, from Java's client properties or from keyword arguments."""

from __future__ import annotations

import importlib.util
from dataclasses import field
from typing import TYPE_CHECKING, Any, Final

from klamm.lazy_dataclass import dataclass
from klamm.properties import SettingsError
from klamm.security.sasl import parse_jaas

if TYPE_CHECKING:
    import ssl
    from collections.abc import Iterable, Mapping

PROTOCOLS: Final = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
_PASSWORD_MECHANISMS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
MECHANISMS: Final = (*_PASSWORD_MECHANISMS, "OAUTHBEARER", "GSSAPI")
_SERVICE_NAME: Final = "sasl.kerberos.service.name"
TLS_KEYS: Final = frozenset(
    {
        "ssl.cipher.suites",
        "ssl.enabled.protocols",
        "ssl.key.password",
        "ssl.keystore.certificate.chain",
        "ssl.keystore.key",
        "ssl.keystore.location",
        "ssl.keystore.password",
        "ssl.keystore.type",
        "ssl.protocol",
        "ssl.truststore.certificates",
        "ssl.truststore.location",
        "ssl.truststore.password",
        "ssl.truststore.type",
    }
)
"""Names of TLS properties that clients and brokers have."""
SECURITY_KEYS: Final = TLS_KEYS | {
    "security.protocol",
    "sasl.jaas.config",
    "sasl.kerberos.service.name",
    "sasl.mechanism",
    "sasl.oauthbearer.token.endpoint.url",
    "ssl.endpoint.identification.algorithm",
}
"""Security properties of Java's clients that have an effect here."""
SECURITY_PREFIXES: Final = ("ssl.", "sasl.", "security.")
"""Prefixes of the security properties of Java's clients."""
_CUSTOM_CLASSES: Final = (".class", "security.providers")
"""Ends of security properties that name custom classes, such as ``ssl.engine.factory.class``."""
KEYWORDS: Final = frozenset(
    {
        "security_protocol",
        "sasl_mechanism",
        "sasl_plain_username",
        "sasl_plain_password",
        "sasl_kerberos_name",
        "sasl_kerberos_service_name",
        "sasl_kerberos_domain_name",
        "sasl_oauth_token_provider",
        "ssl_context",
        "ssl_cafile",
        "ssl_certfile",
        "ssl_keyfile",
        "ssl_password",
        "ssl_crlfile",
        "ssl_check_hostname",
    }
)
"""kafka-python's names of security settings."""


def has_custom_class(names: Iterable[str]) -> bool:
    """Return whether one of these client properties names a custom class of TLS, SASL or security.

    Kafka passes all properties of the client to it, so these may have any name.
    """
    return any(name.startswith(SECURITY_PREFIXES) and name.endswith(_CUSTOM_CLASSES) for name in names)


@dataclass(frozen=True, slots=True, kw_only=True)
class Security:
    """Security settings of one client.

    Settings from properties are sent to Spark's tasks, where files must exist under the same paths.
    """

    protocol: str = "PLAINTEXT"
    mechanism: str = ""
    """SASL mechanism. Without SASL this, ``username`` and ``password`` are empty."""
    username: str = ""
    password: str = field(default="", repr=False)
    login: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """Options of OAUTHBEARER and GSSAPI: those of the login module and the ``sasl.*`` properties, or keyword arguments.
    """
    tls: Mapping[str, str] = field(default_factory=dict, repr=False)
    """The client's ``ssl.*`` properties, including passwords."""
    context: ssl.SSLContext | None = field(default=None, repr=False)
    """TLS context that is used instead of ``tls``. None for settings from properties."""

    @property
    def principal(self) -> str:
        """The principal of the connection as far as this side knows it, for messages."""
        if self.username:
            return f"User:{self.username}"
        return "The principal of this login" if self.uses_tls or self.uses_sasl else "User:ANONYMOUS"

    @property
    def uses_tls(self) -> bool:
        """Return whether the connection is encrypted."""
        return self.protocol.endswith("SSL")

    @property
    def uses_sasl(self) -> bool:
        """Return whether the client authenticates by SASL."""
        return self.protocol.startswith("SASL_")

    @classmethod
    def of(cls, properties: Mapping[str, str]) -> Security:
        """Parse a client's properties.

        Raises:
            SettingsError: The protocol or mechanism is not supported, the login lacks an option, or a store cannot be
                opened. The message never contains a secret.
        """
        protocol = properties.get("security.protocol", "PLAINTEXT").strip().upper()
        if protocol not in PROTOCOLS:
            raise SettingsError(f"security.protocol={protocol}: expected one of {', '.join(PROTOCOLS)}")
        settings: dict[str, Any] = {"protocol": protocol}
        if protocol.endswith("SSL"):
            settings["tls"] = {name: text for name, text in properties.items() if name.startswith("ssl.")}
        if protocol.startswith("SASL_"):
            settings |= _login(properties)
        made = cls(**settings)
        if made.uses_tls:
            from klamm.tls import check_client  # noqa: PLC0415  # OpenSSL costs start-up time

            check_client(made.tls)
        return made

    @classmethod
    def of_keywords(cls, settings: Mapping[str, Any]) -> Security:
        """Return the security settings among keyword arguments with kafka-python's names.

        Raises:
            ValueError: The protocol is unknown, or SASL is required without a mechanism.
            OSError: A file of certificates cannot be read.
        """
        protocol = str(settings.get("security_protocol", "PLAINTEXT")).upper()
        if protocol not in PROTOCOLS:
            raise ValueError(f"security_protocol={protocol!r}: expected one of {', '.join(PROTOCOLS)}")
        uses_sasl = protocol.startswith("SASL_")
        if uses_sasl and not settings.get("sasl_mechanism"):
            raise ValueError(f"security_protocol={protocol!r} requires sasl_mechanism")
        return cls(
            protocol=protocol,
            mechanism=str(settings["sasl_mechanism"]) if uses_sasl else "",
            username=settings.get("sasl_plain_username") or "",
            password=settings.get("sasl_plain_password") or "",
            login={name: value for name, value in settings.items() if name in _LOGIN_KEYWORDS and value is not None},
            context=_context(settings) if protocol.endswith("SSL") else None,
        )

    def tls_context(self) -> ssl.SSLContext:
        """Return the TLS context for connections.

        Raises:
            SettingsError: A store cannot be opened, or a setting is not supported.
        """
        from klamm.tls import client_context  # noqa: PLC0415  # OpenSSL costs start-up time

        return self.context or client_context(self.tls)


_LOGIN_KEYWORDS: Final = frozenset(
    {"sasl_kerberos_name", "sasl_kerberos_service_name", "sasl_kerberos_domain_name", "sasl_oauth_token_provider"}
)


def _context(settings: Mapping[str, Any]) -> ssl.SSLContext:
    import ssl  # noqa: PLC0415  # OpenSSL costs start-up time

    context: ssl.SSLContext | None = settings.get("ssl_context")
    if context is not None:
        return context
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = settings.get("ssl_check_hostname", True)
    if authority := settings.get("ssl_cafile"):
        context.load_verify_locations(authority)
    else:
        context.load_default_certs()
    if certificate := settings.get("ssl_certfile"):
        context.load_cert_chain(certificate, settings.get("ssl_keyfile"), settings.get("ssl_password"))
    if revoked := settings.get("ssl_crlfile"):
        context.load_verify_locations(revoked)
        context.verify_flags |= ssl.VERIFY_CRL_CHECK_LEAF
    return context


def _login(properties: Mapping[str, str]) -> dict[str, Any]:
    mechanism = properties.get("sasl.mechanism", "GSSAPI").strip().upper()
    if mechanism not in MECHANISMS:
        raise SettingsError(f"sasl.mechanism={mechanism}: expected one of {', '.join(MECHANISMS)}")
    if mechanism == "GSSAPI":
        return {"mechanism": mechanism, "login": _kerberos(properties)}
    if "sasl.jaas.config" not in properties:
        raise SettingsError("sasl.jaas.config: expected a login module with its options")
    options = parse_jaas(properties["sasl.jaas.config"], setting="sasl.jaas.config").options
    if mechanism == "OAUTHBEARER":
        more = {name: value for name, value in properties.items() if name.startswith("sasl.oauthbearer.")}
        return {"mechanism": mechanism, "login": {**options, **more}}
    if "username" not in options or "password" not in options:
        raise SettingsError('sasl.jaas.config: expected a login module with username="..." and password="..."')
    return {"mechanism": mechanism, "username": options["username"], "password": options["password"]}


def _kerberos(properties: Mapping[str, str]) -> dict[str, str]:
    """Return the service name of the brokers. The ticket comes from the Kerberos cache of the operating system."""
    if importlib.util.find_spec("gssapi") is None:
        raise SettingsError("sasl.mechanism=GSSAPI: requires the Python package gssapi")
    service = properties.get(_SERVICE_NAME)
    if service is None and "sasl.jaas.config" in properties:
        options = parse_jaas(properties["sasl.jaas.config"], setting="sasl.jaas.config").options
        service = options.get("serviceName")
    if service is None:
        raise SettingsError(f"{_SERVICE_NAME}: required for sasl.mechanism=GSSAPI")
    return {"sasl_kerberos_service_name": service}
