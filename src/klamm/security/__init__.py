"""Authentication and authorization rules: SASL mechanisms, tokens, key stores, ACLs. No I/O, no clock."""
