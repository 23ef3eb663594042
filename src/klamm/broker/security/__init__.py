"""Listeners, TLS, SASL logins, SCRAM credentials and authorization of the broker."""
