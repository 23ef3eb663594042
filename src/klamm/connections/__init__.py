"""Connections based on kafka-python that carry klamm's messages, for admin calls and control loops, not for bulk data.

kafka-python provides SASL, TLS, reconnects and version discovery. klamm's own strict codec encodes and decodes the
messages, so kafka-python's process-wide table of response classes is never modified.
"""
