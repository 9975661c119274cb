"""The sub-commands of ``multigpu``, which ``cli.py`` lists and imports when they are used."""
