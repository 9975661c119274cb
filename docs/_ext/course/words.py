"""Words of the glossary explain themselves where they stand: on hover, on focus, on a tap.

A word that an author marks with ``:term:`` becomes a link into the glossary. So does the first use
on a page of every other word of the glossary, unless it is also a plain English word
(``ORDINARY``). The definitions of a page's words are written into the page, hidden, because a page
from ``file://`` can fetch nothing; ``course.js`` shows them. Without JavaScript the word is a link.
"""

import re
from dataclasses import dataclass
from html import escape

from docutils import nodes
from sphinx import addnodes

from course.element import element

GLOSSARY = "glossary"
PLAIN_PAGES = (GLOSSARY, "404", "search", "genindex", "reference/api")
# In a text these mostly mean what they mean everywhere, or every reader knows them before.
ORDINARY = {
    *("GPU", "batch", "broadcast", "buffer", "check", "checkpoint", "chunk", "device", "epoch"),
    *("efficiency", "gather", "gradient", "handle", "hook", "host", "in flight", "link", "node"),
    *("mismatch", "overlap", "owner", "parameter", "partition", "process", "reduce", "replicate"),
    *("ring", "row group", "scatter", "schedule", "share", "speed-up", "split", "stage", "starter"),
    *("submission", "thread", "timeout", "trace", "traffic", "verdict", "warm-up", "worker"),
}
INSIDE_NO_LINK = (
    *(nodes.title, nodes.reference, nodes.literal, nodes.literal_block, nodes.math, nodes.term),
    *(nodes.rubric, nodes.raw, addnodes.desc_signature, addnodes.toctree, addnodes.pending_xref),
)
NO_LINK_TAGS = {"a", "button", "code", "pre", "summary"}
NO_LINK_CLASSES = {"course-quiz", "course-stepper", "course-hero", "course-label"}
KEPT = {nodes.paragraph: "p", nodes.literal: "code", nodes.emphasis: "em", nodes.strong: "strong"}


@dataclass(frozen=True)
class Word:
    """An entry of the glossary: its anchor there, its names, and its definition as HTML."""

    anchor: str
    name: str
    about: str


def words_of(doctree):
    """The entries of a glossary; of two names for one thing each is an entry."""
    return [
        Word(term["ids"][0], term.astext(), markup(item.next_node(nodes.definition)))
        for glossary in doctree.findall(addnodes.glossary)
        for item in glossary.findall(nodes.definition_list_item)
        for term in item.findall(nodes.term)
    ]


def markup(node):
    """HTML of a definition, without links: a card that leads on elsewhere would never end."""
    if isinstance(node, nodes.Text):
        return escape(node.astext(), quote=False)
    tag = KEPT.get(type(node))
    inside = "".join(markup(child) for child in node.children)
    return f"<{tag}>{inside}</{tag}>" if tag else inside


def learn_words(app, env):
    """Read the glossary once all pages are read; has it changed, every page is written anew."""
    before = getattr(env, "course_words", None)
    env.course_words = []
    if GLOSSARY in env.found_docs:
        doctree = env.get_doctree(GLOSSARY)
        env.apply_post_transforms(doctree, GLOSSARY)  # a reference then says what it leads to
        env.course_words = words_of(doctree)
    return list(env.found_docs) if env.course_words != before else []


def pattern(words):
    """Finds any of these words, also in the plural and at the beginning of a sentence."""

    def form(name):
        first = name[0]
        start = f"[{first}{first.upper()}]" if name == name.lower() else re.escape(first)
        return start + re.escape(name[1:]).replace(r"\ ", r"\s+") + "(?:es|s)?"

    names = sorted((word.name for word in words), key=len, reverse=True)
    return re.compile(rf"(?<![\w./-])(?:{'|'.join(map(form, names))})(?![\w/-]|\.\w)")


def link_words(app, doctree, docname):
    """Mark the author's own links, then link the first use of each other word."""
    if docname in PLAIN_PAGES:
        return
    uri = app.builder.get_relative_uri(docname, GLOSSARY)
    marked = set()
    for link in doctree.findall(nodes.reference):
        if any("std-term" in inner["classes"] for inner in link.findall(nodes.inline)):
            link["classes"].append("course-word")
            marked.add(anchor_of(link))
    open_words = {
        word.name.lower(): word
        for word in app.env.course_words
        if word.name not in ORDINARY and word.anchor not in marked
    }
    if not open_words:
        return
    any_word = pattern(open_words.values())
    for text in [text for text in doctree.findall(nodes.Text) if takes_links(text)]:
        if open_words and any_word.search(text.astext()):
            link_first_uses(text, open_words, uri)


def link_first_uses(text, open_words, uri):
    """Replace the words in one text by links, and take them out of ``open_words``."""
    pieces, rest = [], text.astext()
    while open_words and (found := pattern(open_words.values()).search(rest)):
        word = named(found[0], open_words)
        for other in [name for name, o in open_words.items() if o.about == word.about]:
            del open_words[other]
        link = nodes.reference(
            "", found[0], internal=True, refuri=f"{uri}#{word.anchor}", classes=["course-word"]
        )
        pieces += [nodes.Text(rest[: found.start()]), link]
        rest = rest[found.end() :]
    if pieces:
        text.parent.replace(text, [*pieces, nodes.Text(rest)])


def named(found, words):
    """The entry that a found word, perhaps in the plural, belongs to."""
    name = " ".join(found.lower().split())
    return next(words[form] for form in (name, name[:-1], name[:-2]) if form in words)


def takes_links(text):
    """Whether a word in this text may become a link: no code or heading, nothing one clicks."""
    node = text.parent
    while node is not None:
        if isinstance(node, INSIDE_NO_LINK) or NO_LINK_CLASSES.intersection(
            node.get("classes", ())
        ):
            return False
        if isinstance(node, element) and node["tag"] in NO_LINK_TAGS:
            return False
        node = node.parent
    return True


def anchor_of(link):
    """``term-rank`` of a link to ``../glossary.html#term-rank``."""
    return link.get("refid") or link.get("refuri", "").partition("#")[2]


def bring_definitions(app, pagename, templatename, context, doctree):
    """Write what the page's words mean to its end."""
    if doctree is None or pagename in PLAIN_PAGES:
        return
    links = [link for link in doctree.findall(nodes.reference) if "course-word" in link["classes"]]
    used = {anchor_of(link) for link in links}
    if not used:
        return
    definitions = [
        f'<div id="about-{word.anchor}"><p><strong>{word.name}</strong></p>{word.about}</div>'
        for word in app.env.course_words
        if word.anchor in used
    ]
    context["body"] += f'<div class="course-words" hidden>{"".join(definitions)}</div>\n'


def setup(app):
    app.connect("env-updated", learn_words)
    app.connect("doctree-resolved", link_words)
    app.connect("html-page-context", bring_definitions)
