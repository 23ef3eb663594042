"""What the configs of topics, brokers, groups, loggers and client metrics are, and how they change."""
