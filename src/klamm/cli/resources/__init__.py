"""Commands ``klamm plan``, ``apply``, ``export`` and ``drift``: whole clusters kept in line from files."""
