"""Delays for clients and connections that exceed a quota."""
