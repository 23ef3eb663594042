"""Connections to brokers: TCP, TLS, ApiVersions, SASL login, and frames in reusable memory."""
