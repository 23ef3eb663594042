"""How a client proves who it is and who it talks to: Java's client properties, for data and admin connections."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from klamm.properties import SettingsError
from klamm.security.jaas import parse_jaas
from klamm.tls import client_context

if TYPE_CHECKING:
    import ssl
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
    tls: Mapping[str, str] = field(default_factory=dict, repr=False)
    """The client's ``ssl.*`` properties, passwords among them."""

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
                that can not be opened. Never names a secret.
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
            made.tls_context()
        return made

    def tls_context(self) -> ssl.SSLContext:
        """Return what a TLS connection needs.

        Raises:
            SettingsError: a store can not be opened, or a setting can not be honoured.
        """
        return client_context(self.tls)

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
