"""Pure rules of KIP-649: entities, definitions, planning of changes, resolution for clients, registrations."""
