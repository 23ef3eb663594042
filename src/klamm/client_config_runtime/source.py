"""Interface to the owner of all client configs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from klamm.client_configs.description import Compatibility
    from klamm.client_configs.entities import ClientConfigEntity


class ClientConfigSource(Protocol):
    """Owner of the configs of users and client ids, and of the registrations of clients."""

    @property
    def configs(self) -> Mapping[ClientConfigEntity, Mapping[str, str]]:
        """Configs of every entity that has any."""
        ...

    @property
    def registered(self) -> Mapping[ClientConfigEntity, Compatibility]:
        """Supported keys by client information, for each ``<user, client-id>``."""
        ...

    def resolve(self, entity: ClientConfigEntity) -> dict[str, str]:
        """Return the configs that apply to the application ``<user, client-id>``."""
        ...

    def subscribe(self, listener: Callable[[], None]) -> None:
        """Call ``listener`` after every change of configs."""
        ...
