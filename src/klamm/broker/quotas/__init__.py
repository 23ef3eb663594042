"""Enforcement of client quotas: clients and connections that exceed a quota are delayed."""
