"""Relay of one client connection: its two streams, its requests, its logins, and what intercepts them."""
