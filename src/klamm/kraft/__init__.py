"""Membership in a KRaft cluster as a broker without storage.

In a KRaft cluster (Kafka without ZooKeeper) a few *controllers* agree on the cluster's metadata: they append every
change to one replicated log, ``__cluster_metadata``. Exactly one of them, the *active controller*, decides. A broker is
a process that does three things with the active controller:

- it *registers* under a node id, with its listeners and the feature levels that it supports, and gets a *broker epoch*;
- it sends *heartbeats*. Without them it is *fenced* after ``broker.session.timeout.ms``: it leads no partition;
- it *observes* the metadata log, and so learns which partitions it leads.

``BrokerMember`` does the same and keeps no log of its own. ``MetadataObserver`` does the third alone. The package knows
nothing of mirrors.
"""
