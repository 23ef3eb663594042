"""Client configs (KIP-649) for every client of the cluster behind the gateway.

========================  ============================================================================================
``feature``               The feature
``service``               Start and stop of the parts below, what operators see, and registrations in their topic
``store``                 Owner of the configs: their image in memory, and the order of changes
``config_log``            Records of the configs, and of their history, in their internal topics
``topic_image``           Image of an internal topic that is kept up to date
``watch``                 One client connection: its place in the list of clients, and the values enforced for it
========================  ============================================================================================

ADR 20 has the reasons.
"""
