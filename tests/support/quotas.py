"""Quotas of a server without limits."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from klamm.configs.quotas import QuotaLimit


class NoQuotas:
    """Quotas without any limit."""

    is_empty = True

    def limit(self, name: str, user: str, client_id: str) -> QuotaLimit | None:
        return None

    def limit_of_address(self, address: str) -> float | None:
        return None
