"""Contents of a metadata store, as tests read them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from klamm.storage.metadata.statements import read_history

if TYPE_CHECKING:
    from klamm.history.change import RecordedChange
    from klamm.storage.metadata.store import MetadataStore


def load_history(store: MetadataStore, *, resource: str | None = None, limit: int = 1000) -> list[RecordedChange]:
    """Return the newest entries of the change history, newest first; None means all resources."""
    return store.read(lambda database: read_history(database, resource=resource, limit=limit))
