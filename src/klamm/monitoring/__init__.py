"""Exposition of metrics: Prometheus' text format, and a minimal HTTP server for it."""
