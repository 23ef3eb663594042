"""Names of those who act, as Kafka writes them: ``User:alice``."""

from __future__ import annotations

from typing import Final

from klamm.properties import SettingsError

USER: Final = "User"
ANONYMOUS: Final = "User:ANONYMOUS"
"""Who has not logged in and showed no certificate."""


def user_principal(name: str) -> str:
    """Return the principal of a user."""
    return f"{USER}:{name}"


def user_name(text: str) -> str:
    """Return the name of a user, given as ``alice`` or as the principal ``User:alice``.

    Only one ``User:`` is removed, so that a user whose name begins with it is reached as ``User:User:...``.
    """
    return text.removeprefix(f"{USER}:")


def principal_of(text: str) -> str:
    """Return the principal that a person means by ``User:alice`` or by ``alice``."""
    return text if ":" in text else user_principal(text)


def parse_super_users(text: str | None) -> frozenset[str]:
    """Read ``super.users``: principals separated by semicolons, since certificate names contain commas.

    Raises:
        SettingsError: An entry has no ``Type:``.
    """
    principals = [part.strip() for part in (text or "").split(";")]
    for principal in filter(None, principals):
        kind, colon, name = principal.partition(":")
        if not (kind and colon and name):
            raise SettingsError(f"super.users: {principal!r} is no principal; expected Type:name, like User:admin")
    return frozenset(filter(None, principals))
