"""APIs as the gateway serves them: one module for each API key that differs in more than its versions.

A module has the versions of its API (``API``), how policies decide on it (``POLICY``) and how the history records it
(``RECORDED``). ``altered_configs`` has what the two APIs that alter configs share, ``cluster_rights`` the rights of
clients. ``table`` lists the modules and all other APIs. What is served is computed from it. Nothing outside of this
package names an API.
"""
