"""A document node that becomes one HTML element, raw HTML for readers of HTML only, and MathML.

Docutils knows no ``<details>`` and no ``<button>``. With this node a directive builds them out of
ordinary children, so that links, code and formulas inside them keep working. Formulas become MathML
at build time: no script, no font, no request.
"""

from docutils import nodes
from latex2mathml.converter import convert

INLINE = {"a", "code", "span", "strong"}


class element(nodes.General, nodes.TextElement):
    """``element("", "", *children, tag="details", html={"open": ""})``: see :func:`html`."""


def html(tag, *children, classes=(), ids=(), **attributes):
    """An element of nodes and words. ``aria_label="…"`` is written ``aria-label``."""
    inside = [c if isinstance(c, nodes.Node) else nodes.Text(c) for c in children]
    written = {name.rstrip("_").replace("_", "-"): value for name, value in attributes.items()}
    return element("", "", *inside, tag=tag, html=written, classes=list(classes), ids=list(ids))


def box(kind, label, *children, tag="div", **attributes):
    """A box of a lesson: its label, then what is in it."""
    label = html("p", label, classes=["course-label"])
    return html(tag, label, *children, classes=["course-box", f"course-{kind}"], **attributes)


def raw(markup):
    return nodes.raw("", markup, format="html")


def visit_html(self, node):
    self.body.append(self.starttag(node, node["tag"], "", **node["html"]))


def depart_html(self, node):
    # After an inline element a line break would be a space in the sentence.
    self.body.append(f"</{node['tag']}>" + ("" if node["tag"] in INLINE else "\n"))


def visit_inline_math(self, node):
    self.body.append(convert(node.astext()))
    raise nodes.SkipNode


def visit_math_block(self, node):
    # A long formula scrolls inside its own box, which therefore takes the keyboard focus.
    self.body.append(self.starttag(node, "div", CLASS="math", tabindex="0"))
    self.body.append(convert(node.astext(), display="block"))
    self.body.append("</div>\n")
    raise nodes.SkipNode


def setup(app):
    app.add_node(element, html=(visit_html, depart_html))
    app.add_html_math_renderer("mathml", (visit_inline_math, None), (visit_math_block, None))
