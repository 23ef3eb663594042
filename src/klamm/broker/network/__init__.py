"""Sockets of the broker: connections, request frames in, response frames out in request order."""
