"""Resources of whole clusters kept in line from files: one model, one differ and one executor for all kinds.

``files`` reads the declared resources, ``cluster`` the existing ones, ``diff`` compares them, and ``execute`` sends the
differences in the order of their dependencies.
"""
