"""How a client proves who it is and who it talks to: Java's client properties, for data and admin connections."""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from klamm.properties import SettingsError
from klamm.security.jaas import parse_jaas

if TYPE_CHECKING:
    from collections.abc import Mapping

PROTOCOLS: Final = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
MECHANISMS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")


@dataclass(frozen=True, slots=True, kw_only=True)
class Security:
    """The security settings of one client. Travels to Spark's tasks: files must be there too, under the same name."""

    protocol: str = "PLAINTEXT"
    mechanism: str = ""
    """Empty without SASL, as ``username`` and ``password``."""
    username: str = ""
    password: str = field(default="", repr=False)
    authorities: str = ""
    """PEM file with the certificates that are trusted; empty: those of the system."""
    certificate: str = ""
    """PEM file with our own key and certificates; empty: we show none."""
    key_password: str = field(default="", repr=False)
    check_hostname: bool = True

    @property
    def uses_tls(self) -> bool:
        """Tell whether bytes are encrypted."""
        return self.protocol.endswith("SSL")

    @property
    def uses_sasl(self) -> bool:
        """Tell whether the client logs in."""
        return self.protocol.startswith("SASL_")

    @classmethod
    def of(cls, properties: Mapping[str, str]) -> Security:
        """Read a client's properties.

        Raises:
            SettingsError: a protocol or mechanism that is not spoken here, a login without name or password, a store
                that is not PEM or does not exist. Never names a secret.
        """
        protocol = properties.get("security.protocol", "PLAINTEXT").strip().upper()
        if protocol not in PROTOCOLS:
            raise SettingsError(f"security.protocol={protocol}: expected one of {', '.join(PROTOCOLS)}")
        settings: dict[str, Any] = {"protocol": protocol}
        if protocol.endswith("SSL"):
            settings["authorities"] = _store(properties, "ssl.truststore")
            settings["certificate"] = _store(properties, "ssl.keystore")
            settings["key_password"] = properties.get("ssl.key.password", properties.get("ssl.keystore.password", ""))
            settings["check_hostname"] = properties.get("ssl.endpoint.identification.algorithm", "https") != ""
        if protocol.startswith("SASL_"):
            settings |= _login(properties)
        made = cls(**settings)
        if made.uses_tls:
            made.tls_context()
        return made

    def tls_context(self) -> ssl.SSLContext:
        """Return what a TLS connection needs.

        Raises:
            SettingsError: a file holds no certificates or keys that can be read.
        """
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.check_hostname = self.check_hostname
        try:
            if self.authorities:
                context.load_verify_locations(self.authorities)
            else:
                context.load_default_certs()
        except (OSError, ssl.SSLError) as error:
            raise SettingsError(f"ssl.truststore.location={self.authorities}: can not be read: {error}") from error
        try:
            if self.certificate:
                # A password that is missing is an error, not a question on the terminal.
                context.load_cert_chain(self.certificate, password=lambda: self.key_password)
        except (OSError, ssl.SSLError, ValueError) as error:
            raise SettingsError(f"ssl.keystore.location={self.certificate}: can not be read: {error}") from error
        return context

    def admin_settings(self) -> dict[str, Any]:
        """Return the settings of ``klamm.admin.AdminClient`` that mean the same."""
        settings: dict[str, Any] = {"security_protocol": self.protocol}
        if self.uses_tls:
            settings["ssl_context"] = self.tls_context()
        if self.uses_sasl:
            settings |= {
                "sasl_mechanism": self.mechanism,
                "sasl_plain_username": self.username,
                "sasl_plain_password": self.password,
            }
        return settings


def _store(properties: Mapping[str, str], store: str) -> str:
    location = properties.get(f"{store}.location", "").strip()
    if not location:
        return ""
    kind = properties.get(f"{store}.type", "JKS").strip().upper()
    if kind != "PEM":
        raise SettingsError(
            f"{store}.type={kind}: expected PEM, {store}.location={location} in a format of Java's own can not be read"
        )
    if not Path(location).is_file():
        raise SettingsError(f"{store}.location={location}: there is no such file")
    return location


def _login(properties: Mapping[str, str]) -> dict[str, str]:
    mechanism = properties.get("sasl.mechanism", "GSSAPI").strip().upper()
    if mechanism not in MECHANISMS:
        raise SettingsError(f"sasl.mechanism={mechanism}: expected one of {', '.join(MECHANISMS)}")
    if "sasl.jaas.config" not in properties:
        raise SettingsError("sasl.jaas.config: expected a login module with username and password")
    options = parse_jaas(properties["sasl.jaas.config"], setting="sasl.jaas.config").options
    if "username" not in options or "password" not in options:
        raise SettingsError('sasl.jaas.config: expected a login module with username="..." and password="..."')
    return {"mechanism": mechanism, "username": options["username"], "password": options["password"]}
