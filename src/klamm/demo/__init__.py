"""The demonstration: everything klamm does, on real data, with every claim checked."""
