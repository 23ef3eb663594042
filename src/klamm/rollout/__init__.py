"""Guarded roll-outs: a config change that is applied in waves, watched by guards, and reverted if a guard fails.

=============  =========================================================================================================
``record``     State of a roll-out, its transitions, and the plan of a revert (pure)
``waves``      Division of a change into waves (pure)
``guards``     Guards: parser and decision (pure)
``probes``     Figures that guards compare, read from clusters, metrics, Prometheus and commands
``entities``   Values of topics, brokers, quotas and client configs, read and written by the admin client
``store``      Records of the roll-outs in their internal topic, with compare-and-set
``runner``     Loop that drives one roll-out from state to state
=============  =========================================================================================================

ADR 22 has the reasons.
"""
