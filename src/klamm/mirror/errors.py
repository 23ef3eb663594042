"""Errors of the mirror."""

from __future__ import annotations


class MirrorError(Exception):
    """Base class of the mirror's errors. The message is for the operator."""


class FlowFailedError(MirrorError):
    """A flow cannot continue until an operator changes something. Its state becomes FAILED with this message."""


class SparkFailedError(MirrorError):
    """Spark fails repeatedly, or its JVM is gone and cannot be restarted in this process."""
