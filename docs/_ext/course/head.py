"""The head of a page: what it says to search engines and to programs that show a link as a card.

The picture is ``_static/social_card.png``. A card needs its full address, which only the host
knows: build with ``SITE_URL=https://example.org/course/`` (see ``conf.py``), else it is relative.

The page for an address that leads nowhere must work at any depth. A host shows ``404.html`` under
the address that was asked for, say ``/course/lessons/two_gpus``, and there a relative link leads
astray. With ``SITE_URL`` set the page names the site's place in a ``<base>``; ``multigpu start``
puts its own in. Python's ``http.server`` has a page of its own for this, and a reader of ``file://``
sees the browser's.
"""

import re
from html import escape, unescape

from docutils import nodes

COURSE = "From training a PyTorch model on one GPU to training on many, without a GPU if need be"
LONGEST = 200  # characters of a description that are shown anywhere
CARD = "_static/social_card.png"


def describe(app, pagename, templatename, context, doctree):
    """Add title, description and picture to the page's head."""
    base = app.config.html_baseurl
    image = base + CARD if base else context["pathto"](CARD, resource=True)
    title = unescape(re.sub("<[^>]+>", "", context.get("title", ""))) if pagename != "index" else ""
    said = {
        "og:type": "website" if pagename == "index" else "article",
        "og:site_name": app.config.project,
        "og:title": title or "multigpu: from one GPU to many",
        "og:description": (text := description(doctree) or COURSE),
        "og:image": image,
        "og:image:width": "1200",
        "og:image:height": "630",
        "og:image:alt": "One training step on four GPUs: rows go out, gradients come back",
    }
    if context.get("pageurl"):
        said["og:url"] = context["pageurl"]
    tags = [f'<meta property="{key}" content="{escape(value)}" />' for key, value in said.items()]
    tags.append('<meta name="twitter:card" content="summary_large_image" />')
    if text and 'name="description"' not in context.get("metatags", ""):
        tags.append(f'<meta name="description" content="{escape(text)}" />')
    context["metatags"] = "\n".join([context.get("metatags", ""), *tags])


def description(doctree):
    """The page's first sentences, as many as fit."""
    if doctree is None:
        return ""
    for node in doctree.findall(nodes.meta):
        if node.get("name") == "description":
            return node["content"]
    firsts = (p for p in doctree.findall(nodes.paragraph) if isinstance(p.parent, nodes.section))
    words = " ".join(next(firsts, nodes.paragraph()).astext().split())
    if len(words) <= LONGEST:
        return words
    return words[:LONGEST].rpartition(" ")[0].rstrip(",;:") + " …"


def name_the_place(app, pagename, templatename, context, doctree):
    """Give the page a base that all its links start from."""
    if pagename == "404" and app.config.html_baseurl:
        base = f'\n<base href="{app.config.html_baseurl}" />'
        context["metatags"] = base + context.get("metatags", "")


def setup(app):
    app.connect("html-page-context", describe)
    app.connect("html-page-context", name_the_place, priority=900)
