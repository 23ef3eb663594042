"""Sockets: accepting connections, reading frames, answering in order."""
