"""Each message of the checker has an anchor that is its id, and the site's search knows the id.

The entries stand in ``messages/*.inc`` as a definition list: the id in double backticks, what it
means below. ``troubleshooting.html#split.remainder_dropped`` is such an entry, and from a page
:message:`split.remainder_dropped` leads to it.
"""

from docutils import nodes

from course.element import html

PAGE, SECTION = "troubleshooting", "trouble-messages"


def name_messages(app, doctree):
    """Give every entry its id as an anchor and as a name that can be searched and referred to."""
    if app.env.docname != PAGE:
        return
    domain = app.env.domains.standard_domain
    for section in doctree.findall(nodes.section):
        if SECTION in section["ids"]:
            section["classes"].append("course-messages")
            for term in section.findall(nodes.term):
                name = term.astext()
                term["ids"] = [name]
                domain.note_object("message", name, name, location=term)
                words = term.children
                term.clear()
                term += html("a", *words, href=f"#{name}")


def setup(app):
    app.add_object_type("message", "message", objname="message of the checker")
    app.connect("doctree-read", name_messages)
