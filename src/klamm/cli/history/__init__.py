"""Commands ``history`` and ``revert`` of ``klamm configs`` and ``klamm clients``: past changes, and their reversal."""
