"""History of changes, for broker, gateway and command line: the record of a change, its masks, the rule of a revert."""
