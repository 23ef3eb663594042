"""Errors of the mirror, and the errors of requests to a cluster."""

from __future__ import annotations

from typing import Final

from klamm.client.errors import ConnectionLostError
from klamm.mirror.model import AdminIncompatibleError, AdminRefusedError, ClusterAwayError
from klamm.protocol.errors import ProtocolError, UnsupportedVersionError

CLUSTER_ERRORS: Final = (
    AdminIncompatibleError,
    AdminRefusedError,
    UnsupportedVersionError,
    ClusterAwayError,
    ConnectionLostError,
    ProtocolError,
)
"""Errors of admin calls and of data connections that are caused by the cluster, not by klamm. The caller retries."""


class MirrorError(Exception):
    """Base class of the mirror's errors. The message is for the operator."""


class FlowFailedError(MirrorError):
    """A flow cannot continue until an operator changes something. Its state becomes FAILED with this message."""


class SparkFailedError(MirrorError):
    """Spark fails repeatedly, or its JVM is gone and cannot be restarted in this process."""
