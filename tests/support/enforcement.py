"""Enforcement of client configs for handlers that are tested without a broker."""

from __future__ import annotations

from typing import TYPE_CHECKING

from klamm.client_configs.enforcement import NOTHING_ENFORCED, Enforced, held_acks

if TYPE_CHECKING:
    from klamm.server.session import Session


class SameForAll:
    """The same values are enforced for every client, at first none."""

    def __init__(self) -> None:
        self.values: Enforced = NOTHING_ENFORCED

    def of_session(self, session: Session, client_id: str | None) -> Enforced:
        del session, client_id
        return self.values

    def acks(self, requested: int, session: Session, client_id: str | None) -> int:
        return held_acks(requested, self.of_session(session, client_id))

    def of_member(self, session: Session, client_id: str | None, *, is_joining: bool) -> Enforced:
        del is_joining
        return self.of_session(session, client_id)

    def session_timeout_ms(self, session: Session, client_id: str | None) -> int | None:
        return self.of_session(session, client_id).session_timeout_ms
