"""Watching a mirror: Prometheus metrics under MirrorMaker 2's names, a status page, and both over HTTP."""
