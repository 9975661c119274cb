"""Sphinx configuration of the course's site; ``make site`` builds it.

The site asks nothing of the network: no MathJax, no requirejs, no font from elsewhere. What is the
course's own lives in ``_ext/course`` (its docstring lists the directives a lesson may use).
"""

import os
import sys
from importlib.metadata import version as version_of
from pathlib import Path

import pypandoc

sys.modules["rfc3987_syntax"] = None  # nbformat needs jsonschema: see multigpu/commands/start.py
HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE / "_ext"))
# nbsphinx calls pandoc by its name; pypandoc_binary brings it, but not on PATH.
os.environ["PATH"] = f"{Path(pypandoc.get_pandoc_path()).parent}{os.pathsep}{os.environ['PATH']}"

project = "multigpu"
author = "the multigpu authors"
copyright = "the multigpu authors, MIT license"
release = version = version_of("multigpu")
language = "en"

extensions = [
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "nbsphinx",
    "sphinx_copybutton",
    "course",
]
exclude_patterns = ["_build", "_ext", "records", "_static", "**.ipynb_checkpoints"]
nitpicky = False
smartquotes = False
default_role = "code"
highlight_language = "python3"

nbsphinx_execute = "never"  # notebooks are executed by the staging step in _ext/course
nbsphinx_requirejs_path = ""
nbsphinx_prolog = ".. open-notebook:: {{ env.docname.rpartition('/')[2] }}.ipynb"
html_math_renderer = "mathml"
course_seconds_per_cell = 300

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_preserve_defaults = True

# What a reader types is copied: no prompt, no output, no mark of a changed line.
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True
copybutton_line_continuation_character = "\\"
copybutton_copy_empty_lines = False
copybutton_selector = (
    "div.highlight pre:not(.nboutput pre, .highlight-none pre, .highlight-text pre, "
    ".highlight-diff pre, .course-signature pre)"
)

# Where the site will stand, with a slash at the end: cards and the page for lost readers need it.
html_baseurl = os.environ.get("SITE_URL", "")
html_theme = "pydata_sphinx_theme"
html_title = "multigpu"
html_favicon = "_static/icon.svg"
html_static_path = ["_static"]
html_css_files = ["course.css"]
html_js_files = [("course.js", {"defer": "defer"})]
html_show_search_summary = False  # summaries are fetched, and fetch() fails on file://
html_copy_source = False
html_domain_indices = False
html_show_sourcelink = False
html_theme_options = {
    "logo": {
        "text": "multigpu",
        "image_light": "_static/icon.svg",
        "image_dark": "_static/icon.svg",
        "alt_text": "",  # the name is beside it
    },
    "navbar_align": "left",
    "navbar_end": ["theme-switcher"],
    "navbar_persistent": ["search-button"],
    "header_links_before_dropdown": 7,
    "secondary_sidebar_items": ["page-toc"],
    "show_toc_level": 2,
    "footer_start": ["copyright"],
    "footer_end": [],
    "navigation_with_keys": False,  # arrow keys belong to the stepper
    "pygments_light_style": "a11y-high-contrast-light",
    "pygments_dark_style": "a11y-high-contrast-dark",
}
html_context = {"default_mode": "auto"}  # light or dark as the reader's system
# Only the parts that have several pages get a list of them on the left.
html_sidebars = {
    **{pages: [] for pages in ("*", "_notebooks/*", "_modules/**")},
    **{f"{part}/*": ["sidebar-nav-bs"] for part in ("lessons", "exercises", "reference")},
}
