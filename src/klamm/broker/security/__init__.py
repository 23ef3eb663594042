"""SCRAM credentials, the authorizer and the renewal of the broker's TLS certificates."""
