"""Client configs (KIP-649) as the broker and the gateway serve them: enforcement, registrations, connected clients.

The rules are in ``klamm.client_configs``. The owner of the configs is the broker's metadata, or an internal topic of
the gateway's upstream; this package sees it as a ``ClientConfigSource``.
"""
