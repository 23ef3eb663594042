"""Client configs (KIP-649) for every client of the cluster behind the gateway.

========================  ============================================================================================
``feature``               The feature
``service``               Start and stop of the parts below, and what operators see
``store``                 Owner of the configs: their image in memory, and the order of changes
``registrations``         Registrations of clients in their internal topic
``config_log``            Records of the configs in their internal topic
``history_log``           Records of the history of configs in their internal topic
``topic_image``           Image of an internal topic that is kept up to date
``watch``                 One client connection: its place in the list of clients, and the values enforced for it
========================  ============================================================================================

ADR 20 has the reasons.
"""
