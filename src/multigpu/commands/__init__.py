"""Sub-commands of ``multigpu`` that look after the course itself, not after an answer.

``start`` opens the course (:mod:`.start`, with :mod:`.site` that builds the pages and :mod:`.lab`
that serves them); ``doctor`` says whether this machine is ready (:mod:`.doctor`, :mod:`.health`).
"""
