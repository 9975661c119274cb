"""The page for an address that leads nowhere must work at any depth.

A host shows ``404.html`` under the address that was asked for, say ``/course/lessons/two_gpus``,
and there a relative link leads astray. With ``SITE_URL`` set (see ``conf.py``) the page names the
site's place in a ``<base>``; ``multigpu start`` puts its own in. Python's ``http.server`` has a
page of its own for this, and a reader of ``file://`` sees the browser's.
"""

PAGE = "404"


def name_the_place(app, pagename, templatename, context, doctree):
    """Give the page a base that all its links start from."""
    if pagename == PAGE and app.config.html_baseurl:
        base = f'\n<base href="{app.config.html_baseurl}" />'
        context["metatags"] = base + context.get("metatags", "")


def setup(app):
    app.connect("html-page-context", name_the_place, priority=900)
