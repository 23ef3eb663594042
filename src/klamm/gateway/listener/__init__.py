"""Listening sockets, and accepted connections until their relays start: PROXY header, TLS, principals."""
