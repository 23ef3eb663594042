"""Dynamic client configs (KIP-649) in the broker: changes, who is connected, what clients registered."""
