"""Dynamic client configs (KIP-649) in the broker: changes, connected clients and their registrations."""
