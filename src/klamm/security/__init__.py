"""Who somebody is and what they may do: the rules, without I/O, clock or randomness of their own."""
