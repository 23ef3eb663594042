"""Dynamic client configs (KIP-649) in the broker: the owner of the configs in the metadata store."""
