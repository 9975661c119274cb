"""A document node that becomes one HTML element, and raw HTML for readers of HTML only.

Docutils knows no ``<details>`` and no ``<button>``. With this node a directive builds them out of
ordinary children, so that links, code and formulas inside them keep working.
"""

from docutils import nodes

INLINE = {"a", "code", "span", "strong"}


class element(nodes.General, nodes.TextElement):
    """``element("", "", *children, tag="details", html={"open": ""})``: see :func:`html`."""


def html(tag, *children, classes=(), ids=(), **attributes):
    """An element with ``attributes`` (``aria_label="…"`` is written ``aria-label``)."""
    written = {name.rstrip("_").replace("_", "-"): value for name, value in attributes.items()}
    return element("", "", *children, tag=tag, html=written, classes=list(classes), ids=list(ids))


def text(words):
    return nodes.Text(words)


def raw(markup):
    return nodes.raw("", markup, format="html")


def visit_html(self, node):
    self.body.append(self.starttag(node, node["tag"], "", **node["html"]))


def depart_html(self, node):
    # After an inline element a line break would be a space in the sentence.
    self.body.append(f"</{node['tag']}>" + ("" if node["tag"] in INLINE else "\n"))


def ignore(self, node):
    """Other builders show the children without the element."""


def setup(app):
    others = dict.fromkeys(("latex", "text", "man", "texinfo"), (ignore, ignore))
    app.add_node(element, html=(visit_html, depart_html), **others)
