"""The rules of configs (KIP-339, KIP-226): what exists, what may be set, and what a description says. Pure."""
