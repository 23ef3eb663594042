"""Principals, written as Kafka writes them: ``User:alice``."""

from __future__ import annotations

from typing import Final

from klamm.properties import SettingsError

USER: Final = "User"
ANONYMOUS: Final = "User:ANONYMOUS"
"""Principal of a client that neither logged in nor presented a certificate."""


def user_principal(name: str) -> str:
    """Return the principal of a user name."""
    return f"{USER}:{name}"


def user_name(text: str) -> str:
    """Return the user name, given as ``alice`` or as the principal ``User:alice``.

    Only one ``User:`` is removed, so ``User:User:x`` names the user ``User:x``.
    """
    return text.removeprefix(f"{USER}:")


def principal_of(text: str) -> str:
    """Return the principal for an input of ``User:alice`` or ``alice``."""
    return text if ":" in text else user_principal(text)


def parse_super_users(text: str | None) -> frozenset[str]:
    """Parse ``super.users``. Principals are separated by semicolons, because certificate names contain commas.

    Raises:
        SettingsError: An entry has no ``Type:``.
    """
    principals = [part.strip() for part in (text or "").split(";")]
    for principal in filter(None, principals):
        kind, colon, name = principal.partition(":")
        if not (kind and colon and name):
            raise SettingsError(f"super.users: {principal!r} is no principal; expected Type:name, like User:admin")
    return frozenset(filter(None, principals))
