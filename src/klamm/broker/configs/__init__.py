"""Configs of topics, brokers, groups, loggers and client metrics, and client quotas: current values and changes."""
