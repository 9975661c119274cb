"""What people look for is found: the phrases of ``asked.toml`` become entries of search and index.

Sphinx's search gives every page that has the words the same rank. An index entry comes before them
and leads to its section.
"""

import tomllib
from pathlib import Path

from docutils import nodes
from sphinx import addnodes
from sphinx.util import logging

logger = logging.getLogger(__name__)
ASKED = Path(__file__).with_name("asked.toml")


def note_phrases(app, doctree):
    """Put the phrases that a page answers before its sections."""
    here = app.env.docname
    app.env.note_dependency(str(ASKED))
    sections = {name: part for part in doctree.findall(nodes.section) for name in part["ids"]}
    for phrase, places in tomllib.loads(ASKED.read_text(encoding="utf-8")).items():
        for place in places:
            page, _, name = place.partition("#")
            if page != here:
                continue
            if name and name not in sections:
                logger.warning("%s: no section %r answers %r", ASKED.name, place, phrase)
            entry = ("single", phrase, name, "main", None)
            doctree.insert(0, addnodes.index(entries=[entry]))  # read by the search
            app.env.domains.index_domain.entries.setdefault(page, []).append(entry)


def keep_phrases(app):
    """Entries of pages that are not written anew, which Sphinx forgets between two builds."""
    entries = app.env.domains.index_domain.entries
    known = app.builder.indexer._index_entries if app.builder.search else {}
    for page in set(entries) - set(known):
        known[page] = sorted({(words, at, main) for _, words, at, main, _ in entries[page] if main})
    return []


def setup(app):
    app.connect("doctree-read", note_phrases)
    app.connect("html-collect-pages", keep_phrases)
