"""Security settings of a client from Java's client properties, for data connections and admin connections."""

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
    """Security settings of one client. They are sent to Spark's tasks, where files must exist under the same paths."""

    protocol: str = "PLAINTEXT"
    mechanism: str = ""
    """SASL mechanism. Without SASL this, ``username`` and ``password`` are empty."""
    username: str = ""
    password: str = field(default="", repr=False)
    tls: Mapping[str, str] = field(default_factory=dict, repr=False)
    """The client's ``ssl.*`` properties, including passwords."""

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
            SettingsError: The protocol or mechanism is not supported, the login has no username or password, or a store
                cannot be opened. The message never contains a secret.
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
        """Return the TLS context for connections.

        Raises:
            SettingsError: A store cannot be opened, or a setting is not supported.
        """
        return client_context(self.tls)

    def admin_settings(self) -> dict[str, Any]:
        """Return the equivalent settings of ``klamm.admin.AdminClient``."""
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
        raise SettingsError("sasl.jaas.config: expected a login module with its username and password")
    options = parse_jaas(properties["sasl.jaas.config"], setting="sasl.jaas.config").options
    if "username" not in options or "password" not in options:
        raise SettingsError('sasl.jaas.config: expected a login module with username="..." and password="..."')
    return {"mechanism": mechanism, "username": options["username"], "password": options["password"]}
