"""Kafka client: ``connection`` opens and logs in, ``data`` and ``pool`` are the two ways to use open connections.

``data`` is driven by a selector and does not copy record batches: the mirror's data path and the dataframes use it.
``pool`` has a thread of its own and serves calls from many threads: ``klamm.admin`` and ``klamm.clients`` use it.
"""
