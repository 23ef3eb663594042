"""Pure rules of configs (KIP-339, KIP-226): definitions, validation of changes, and descriptions."""
