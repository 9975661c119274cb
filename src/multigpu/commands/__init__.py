"""The sub-commands of ``multigpu``, one module each, imported when used.

A sub-command is a module with ``add_arguments(parser)`` and ``run(arguments) -> int``, the exit
code. Beside them: ``start`` builds the pages with :mod:`.site` and serves them with :mod:`.lab`,
``doctor`` takes its findings from :mod:`.health`; :mod:`.folder` finds the repository and
:mod:`.leftovers` ends the processes that a command started.
"""
