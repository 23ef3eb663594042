"""Errors of the mirror: what was asked wrongly at start, and what ends a flow."""

from __future__ import annotations


class MirrorError(Exception):
    """Base of the mirror's errors; the text is for the person who runs it."""


class FlowFailedError(MirrorError):
    """A flow can not go on until somebody changes something; its state becomes FAILED with this text."""


class PartitionStoppedError(MirrorError):
    """One partition can not be mirrored further without losing or doubling records; the others go on."""
