"""The sub-commands of ``multigpu``, imported when used.

``exercises`` and ``check`` are for those who write answers; ``start`` opens the course with the
help of ``site``; ``train``, ``compare`` and ``repartition`` work on models and data.
"""
