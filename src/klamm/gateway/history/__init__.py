"""History of changes that clients make through the gateway: who changed what, and when.

========================  ============================================================================================
``feature``               The feature: requests that are recorded
``recorder``              Observer of forwarded requests: the state before, the response, the recorded changes
``recorded_api``          Interface of the APIs whose changes are recorded (``gateway.apis``)
``before``                State of the upstream before a change
``log``                   Records of the changes in their internal topic, and the reader of all histories of gateways
``writer``                Records on their way to the topic
========================  ============================================================================================

Changes of client configs are in a topic of their own, see ``client_configs.config_log``. ADR 21 has the reasons.
"""
