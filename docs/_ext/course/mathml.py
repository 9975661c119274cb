"""Formulas as MathML, made at build time: no script, no font, no request."""

from docutils import nodes
from latex2mathml.converter import convert


def visit_inline(self, node):
    self.body.append(convert(node.astext()))
    raise nodes.SkipNode


def visit_block(self, node):
    # A long formula scrolls inside its own box, which therefore takes the keyboard focus.
    self.body.append(self.starttag(node, "div", CLASS="math", tabindex="0"))
    self.body.append(convert(node.astext(), display="block"))
    self.body.append("</div>\n")
    raise nodes.SkipNode


def setup(app):
    app.add_html_math_renderer("mathml", (visit_inline, None), (visit_block, None))
