"""The cluster behind the gateway: its topology, connections to it, and the gateway's own topics there."""
