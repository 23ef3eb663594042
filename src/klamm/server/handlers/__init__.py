"""Handlers of the APIs that every server has: the SASL login."""
