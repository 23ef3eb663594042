"""Topics, their configs and ACLs on the target of a flow: what has to be done, and the loop that does it."""
