"""Prediction of what a change would do to a cluster, as pure functions from facts and changes to findings.

``changes`` declares the changes, ``facts`` the observations of a cluster, ``findings`` the results, and ``rules`` the
predictions. Nothing here does I/O. ``klamm.admin.impact.impact_of`` collects the facts from a cluster and applies the
rules.
"""
