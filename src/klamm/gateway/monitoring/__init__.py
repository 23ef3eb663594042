"""Metrics, readiness and the page of the gateway."""
