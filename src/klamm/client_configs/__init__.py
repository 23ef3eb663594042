"""Pure rules of KIP-649: whose configs they are, which ones exist, what a request may change, what applies to whom."""
