"""Each message of the checker has an anchor that is its id, and the site's search knows the id.

    .. exercise-messages:: data_parallel

shows the messages of a chapter: of each exercise its mistakes and properties, as its declaration
tells them.

``troubleshooting.html#split.remainder_dropped`` is such an entry, and from a page
:message:`split.remainder_dropped` leads to it.
"""

import re
from pathlib import Path

from docutils import nodes
from sphinx.util.docutils import SphinxDirective

from course.element import html
from multigpu.checking.catalog import Catalog, Course
from multigpu.checking.declaration import load

CODE = re.compile(r"`+([^`]+)`+")
SPECIAL = re.compile(r"([\\*_|])")
PAGE, SECTION = "troubleshooting", "trouble-messages"


class ExerciseMessages(SphinxDirective):
    """The messages of one chapter, an exercise after the other."""

    required_arguments = 1

    def run(self):
        module, course = self.arguments[0], Course(Path(self.env.srcdir).parent)
        lines = []
        for exercise in Catalog(course).find(module):
            path = course.check_file(module, exercise.function)
            self.env.note_dependency(str(path))
            heading = f"``{exercise.function}``"
            lines += ["", heading, "~" * len(heading), ""]
            for name, text in load(path).entries.items():
                lines += [f"``{name}``", f"   {as_page_text(as_sentence(text))}", ""]
        return self.parse_text_to_nodes("\n".join(lines), allow_section_headings=True)


def as_sentence(text):
    """With a capital, unless it begins with code: ``torch.chunk(3)``, ``train()``."""
    is_code = re.match(r"\w+[.(_]", text)
    return text if is_code else text[0].upper() + text[1:]


def as_page_text(sentences):
    """Plain sentences as reStructuredText: ``copy_`` is not a link, and `code` is code."""
    parts = CODE.split(sentences)
    parts[::2] = [SPECIAL.sub(r"\\\1", words) for words in parts[::2]]
    parts[1::2] = [f"``{code}``" for code in parts[1::2]]
    return "".join(parts)


def name_messages(app, doctree):
    """Give every entry its id as an anchor and as a name that can be searched and referred to.

    Two exercises are called ``broadcast``.  If both have a message of one name, references lead to
    the first.
    """
    if app.env.docname != PAGE:
        return
    domain = app.env.domains.standard_domain
    for section in doctree.findall(nodes.section):
        if SECTION in section["ids"]:
            section["classes"].append("course-messages")
            known = set()
            for term in section.findall(nodes.term):
                name = term.astext()
                anchor = f"{name}-2" if name in known else name
                term["ids"] = [anchor]
                if name not in known:
                    domain.note_object("message", name, name, location=term)
                known.add(name)
                words = term.children
                term.clear()
                term += html("a", *words, href=f"#{anchor}")


def setup(app):
    app.add_object_type("message", "message", objname="message of the checker")
    app.add_directive("exercise-messages", ExerciseMessages)
    app.connect("doctree-read", name_messages)
