"""Why partitions do not change hands between klamm and the brokers of the target."""

from __future__ import annotations


class PromotionError(Exception):
    """Partitions cannot be handed over, or taken back, now. The message names them; they stay where they are."""


class PromotionWaitsError(PromotionError):
    """They cannot be handed over yet. They were not sealed, so the next attempt costs producers nothing."""
