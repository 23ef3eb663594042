"""Login of clients by TLS and SASL, from the settings of a listener."""
