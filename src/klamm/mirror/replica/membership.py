"""Membership in the target cluster, as the broker without storage uses it (``klamm.kraft.member``)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping
    from uuid import UUID

    from klamm.kraft.errors import MembershipError
    from klamm.kraft.image import ClusterImage
    from klamm.kraft.member import IsrChange, IsrState
    from klamm.protocol.errors import KafkaApiError


class ImageObserver(Protocol):
    """Reader of the target's metadata (``klamm.kraft.observer.MetadataObserver``)."""

    @property
    def image(self) -> ClusterImage:
        """Return the latest image."""
        ...

    def subscribe(self, callback: Callable[[ClusterImage], None]) -> Callable[[], None]:
        """Call a function with each new image."""
        ...

    def wait_for(self, predicate: Callable[[ClusterImage], bool], timeout_s: float) -> ClusterImage:
        """Wait for an image. Raise TimeoutError if it does not appear."""
        ...


class ClusterMembership(Protocol):
    """ClusterMembership in the target cluster (``klamm.kraft.member.BrokerMember``)."""

    error: MembershipError | None
    """Error that ended the membership."""
    inter_broker_listener: str
    """Name of the listener with which brokers connect."""

    @property
    def observer(self) -> ImageObserver:
        """Return the reader of the metadata."""
        ...

    def read_authorizers(self, node_ids: Collection[int]) -> Mapping[int, str]:
        """Return the authorizer class of brokers, by node id. Empty: a broker has none. Unknown ones are left out."""
        ...

    def start(self) -> None:
        """Register, and return when the broker is unfenced."""
        ...

    def is_leased(self) -> bool:
        """Return whether the controller counts the broker as alive."""
        ...

    def fence(self, fenced: bool) -> None:
        """Fence or unfence the broker."""
        ...

    def alter_partitions(
        self, changes: Mapping[tuple[UUID, int], IsrChange]
    ) -> Mapping[tuple[UUID, int], IsrState | KafkaApiError]:
        """Change the ISR of partitions that klamm leads."""
        ...

    def allocate_producer_ids(self) -> range:
        """Take the next block of producer ids from the controller."""
        ...

    def cordon(self, cordoned: bool) -> None:
        """Let the controller place no new partitions here, or again some."""
        ...

    def shut_down(self) -> None:
        """Leave in a controlled way. The registration stays."""
        ...

    def unregister(self) -> None:
        """Leave, and remove the registration if it is still that of this process."""
        ...

    def close(self) -> None:
        """Stop without a word to the controller."""
        ...
