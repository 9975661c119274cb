"""Starts N processes, traces every collective that they make, and says what went wrong.

``run_ranks(fn, 4)`` runs ``fn`` on 4 ranks; start reading at ``run.py``.
"""
