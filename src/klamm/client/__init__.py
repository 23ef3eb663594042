"""Kafka client.

``cluster`` and ``connection`` are driven by a selector and do not copy record batches: the mirror's data path and the
dataframes use them. ``pool`` has a thread of its own and serves calls from many threads: ``klamm.admin`` and
``klamm.clients`` use it.
"""
