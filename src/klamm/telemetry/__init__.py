"""Client metrics (KIP-714): subscriptions, client instances, and the metrics that clients push."""
