"""The sub-commands of ``multigpu``, imported when used.

``exercises`` and ``check`` are for those who write answers; ``start`` opens the course with the
help of ``site`` and ``lab``; ``train``, ``compare`` and ``partition`` work on models and data.
"""
