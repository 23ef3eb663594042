"""Errors of the mirror: what was asked wrongly at start, and what ends a flow."""

from __future__ import annotations

from typing import Final

from klamm.client.connection import ApiMissingError, ConnectionLostError
from klamm.mirror.model import AdminIncompatibleError, AdminRefusedError, ClusterAwayError
from klamm.protocol.errors import ProtocolError

CLUSTER_ERRORS: Final = (
    AdminIncompatibleError,
    AdminRefusedError,
    ApiMissingError,
    ClusterAwayError,
    ConnectionLostError,
    ProtocolError,
)
"""What a cluster may have against being asked, by admin calls and by the data path's connections: no fault of ours."""


class MirrorError(Exception):
    """Base of the mirror's errors; the text is for the person who runs it."""


class FlowFailedError(MirrorError):
    """A flow can not go on until somebody changes something; its state becomes FAILED with this text."""


class SparkFailedError(MirrorError):
    """Spark fails again and again, or is gone and cannot be started by this process."""
