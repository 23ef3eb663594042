"""Client metrics (KIP-714) in the broker: the owner of all client instances, and the export of their metrics."""
