"""Our messages on kafka-python's connections: for the admin, the clients and control loops, not for bulk data.

kafka-python brings SASL, TLS, reconnecting and version discovery; the messages are read and written by klamm's own
strict codec, so its process-wide table of response classes is never touched.
"""
