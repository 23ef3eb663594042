"""SCRAM users of a gateway that checks logins itself: passwords from the settings, credentials derived from them."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

from klamm.properties import SettingsError
from klamm.security.scram import (
    MIN_ITERATIONS,
    ScramCredential,
    ScramMechanism,
    credential_from_salted_password,
    salt_password,
)
from klamm.server.listeners import setting_of
from klamm.server.security.endpoints import jaas_entry

if TYPE_CHECKING:
    from collections.abc import Mapping

_SALT_BYTES = 20


class ScramUsers:
    """SCRAM credentials by user, each derived at the first login of the user.

    A broker keeps credentials in its metadata. A gateway has no such store: its users are options ``user_NAME`` of
    the login module, as Kafka has them for PLAIN.

    Args:
        listener: Name of the listener.
        configs: Settings of the gateway.

    Raises:
        SettingsError: A SCRAM mechanism is enabled and has no users, or a user has no password.
    """

    def __init__(self, listener: str, configs: Mapping[str, str]) -> None:
        self._passwords: dict[ScramMechanism, Mapping[str, str]] = {}
        self._credentials: dict[tuple[str, ScramMechanism], ScramCredential] = {}
        for name in (setting_of(configs, listener, "sasl.enabled.mechanisms") or "").split(","):
            mechanism = ScramMechanism.from_name(name.strip())
            if mechanism is ScramMechanism.UNKNOWN:
                continue
            entry = jaas_entry(listener, mechanism.mechanism_name, configs)
            if entry is None or not entry.users:
                raise SettingsError(
                    f"Listener {listener} enables {mechanism.mechanism_name} but names no users: set"
                    f" listener.name.{listener.lower()}.{mechanism.mechanism_name.lower()}.sasl.jaas.config="
                    f'org.apache.kafka.common.security.scram.ScramLoginModule required user_NAME="PASSWORD";'
                )
            if empty := [user for user, password in entry.users.items() if not password]:
                raise SettingsError(
                    f"Listener {listener}: user_{empty[0]} of {mechanism.mechanism_name}: the password must not be"
                    " empty"
                )
            self._passwords[mechanism] = entry.users

    def find(self, user_name: str, mechanism: ScramMechanism) -> ScramCredential | None:
        """Return the credential of a user; None if there is no such user."""
        password = self._passwords.get(mechanism, {}).get(user_name)
        if password is None:
            return None
        credential = self._credentials.get((user_name, mechanism))
        if credential is None:
            salt = secrets.token_bytes(_SALT_BYTES)
            salted = salt_password(mechanism, password, salt=salt, iterations=MIN_ITERATIONS)
            credential = credential_from_salted_password(
                mechanism, salted_password=salted, salt=salt, iterations=MIN_ITERATIONS
            )
            self._credentials[user_name, mechanism] = credential
        return credential
