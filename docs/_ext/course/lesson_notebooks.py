"""Each lesson as a notebook: ``notebooks/lessons/<page>.ipynb``, made from the built page.

The cells are those that ran for the page, with the same working folder; the text between them is
the page's, as Markdown. What only a browser can show (explorers, steppers) becomes a pointer to the
page. A learner's copy in which a cell has been changed is never overwritten.
"""

import hashlib
import re
from pathlib import Path
from posixpath import normpath

import nbformat
import pypandoc
from bs4 import BeautifulSoup

from course import execution, records
from course.way import lesson_of
from multigpu.checking.lessons import LESSONS

FOLDER = Path("notebooks", "lessons")
MADE = "made_from_page"  # in the metadata: the hash of the cells as they were written
ONLY_ON_THE_PAGE = ", ".join(
    [
        *("script", "nav", "a.headerlink", ".course-overview > .course-label", ".course-facts"),
        *(".course-words", ".course-open", ".course-recorded", ".course-more"),
    ]
)
KERNEL = {"name": "python3", "language": "python", "display_name": "Python 3"}
PLACE = re.compile(r"^COURSECELL(\d+)$", re.MULTILINE)
FOLD = re.compile(r"^(\s*(?:- )?)COURSEFOLD(OPEN|CLOSE)\s?(.*)$", re.MULTILINE)


def write(app, pagename, templatename, context, doctree):
    """Write the notebook of a lesson when its page is written."""
    lesson = lesson_of(pagename)
    if lesson is None or doctree is None:
        return
    root = Path(app.srcdir).parent
    path = root / FOLDER / f"{lesson.page}.ipynb"
    made = notebook_of(lesson, context["body"], cells_of(root, pagename))
    if path.exists():
        there = nbformat.read(path, as_version=4)
        known = there.metadata.get(MADE)
        if known == made.metadata[MADE] or known != digest(there):
            return  # the same page, or a learner's own changes
    path.parent.mkdir(parents=True, exist_ok=True)
    nbformat.write(made, path)


def cells_of(root, pagename):
    """The code cells of a page, without the values of its text."""
    shown = records.load(records.path_of(root, pagename, records.SHOWN))
    return [cell for cell in shown.cells if not records.is_value(cell)] if shown else []


def notebook_of(lesson, body, cells):
    """The lesson as a notebook without outputs."""
    opening = (
        f"*Lesson {lesson.number} of {len(LESSONS)} as a notebook, made from its page "
        f"`lessons/{lesson.page}.html`. Numbers in the text are those that were recorded for the "
        "page; your own runs give your own.*"
    )
    made = nbformat.v4.new_notebook(metadata={"kernelspec": KERNEL})
    parts = PLACE.split(markdown_of(body, lesson))
    texts, places = parts[::2], parts[1::2]
    heading, _, rest = texts[0].strip().partition("\n")
    texts[0] = f"{heading}\n\n{opening}\n{rest}"
    for number, text in enumerate(texts):
        if text.strip():
            made.cells.append(nbformat.v4.new_markdown_cell(text.strip(), id=f"text-{number}"))
        if number == len(places):
            break
        cell = cells[int(places[number])]
        # A cell that asserts what only a quiet machine keeps is left out: a reader's may be busy.
        if execution.QUIET not in records.tags_of(cell):
            made.cells.append(code_cell(cell, places[number]))
    made.metadata[MADE] = digest(made)
    return made


def code_cell(cell, number):
    """A cell as the lab shows it; the source of one that the page hides is folded away."""
    tags = [tag for tag in records.tags_of(cell) if tag == "raises-exception"]
    folded = {"jupyter": {"source_hidden": True}} if "hide-code" in records.tags_of(cell) else {}
    metadata = folded | ({"tags": tags} if tags else {})
    return nbformat.v4.new_code_cell(cell.source, id=f"cell-{number}", metadata=metadata)


def markdown_of(body, lesson):
    """The page's text, with one line ``COURSECELL<n>`` in the place of each cell."""
    soup = BeautifulSoup(body, "html.parser")
    for number, cell in enumerate(soup.select(".course-cell")):
        cell.replace_with(paragraph(soup, f"COURSECELL{number}"))
    for gone in soup.select(ONLY_ON_THE_PAGE):
        gone.decompose()
    for box in soup.select(".course-explorer"):
        title = box.select(".course-label")[0].get_text(" ", strip=True)
        box.replace_with(paragraph(soup, f"(On the page you can try it out: “{title}”.)"))
    for box in soup.select("details"):
        fold(soup, box)
    for link in soup.select("a[href]"):
        redirect(link, lesson)
    for words in soup.select(".course-label, .course-lead, .course-title, .course-question"):
        strong = soup.new_tag("strong")
        strong.extend(list(words.contents))
        words.append(strong)
    for tag in soup.select("[class], [id]"):
        del tag["class"], tag["id"]
    text = pypandoc.convert_text(
        str(soup),
        "gfm-tex_math_gfm+tex_math_dollars",
        "html-native_divs-native_spans",
        extra_args=["--wrap=none"],
    )
    return FOLD.sub(unfolded, text)


def paragraph(soup, words):
    tag = soup.new_tag("p")
    tag.string = words
    return tag


def fold(soup, box):
    """Mark where a box opens and closes: pandoc drops ``details``, and the lab can show it."""
    summary = box.find("summary").extract()
    for ask in summary.select(".course-ask"):
        ask.decompose()
    labelled = summary.select(".course-label, .course-question")
    parts = [part.get_text(" ", strip=True) for part in labelled]
    words = ": ".join(parts) or summary.get_text(" ", strip=True)
    box.insert(0, paragraph(soup, f"COURSEFOLDOPEN {words}"))
    box.append(paragraph(soup, "COURSEFOLDCLOSE"))
    box.unwrap()


def unfolded(match):
    if match[2] == "CLOSE":
        return f"{match[1]}</details>\n"
    return f"{match[1]}<details><summary>{match[3]}</summary>"


def redirect(link, lesson):
    """Lead from lesson to lesson and to notebooks; other pages of the site are only named."""
    href = link["href"]
    if re.match(r"https?:", href):
        return
    page, _, name = normpath(f"lessons/{href.partition('#')[0]}").rpartition("/")
    name = name.removesuffix(".html")
    if page == "lessons" and name in {each.page for each in LESSONS} - {lesson.page}:
        link["href"] = f"{name}.ipynb"
    elif page == "_notebooks":
        link["href"] = f"../{name}.ipynb"
    else:
        link.unwrap()


def digest(notebook):
    """A hash of what a reader can change; running the cells changes outputs only."""
    sources = "\0".join(f"{cell.cell_type} {cell.source}" for cell in notebook.cells)
    return hashlib.sha256(sources.encode()).hexdigest()[:16]


def without_notebook(app, env):
    """Lessons whose notebook is missing are written again."""
    root = Path(app.srcdir).parent
    pages = (f"lessons/{lesson.page}" for lesson in LESSONS)
    return [
        page
        for page in pages
        if page in env.found_docs and not (root / "notebooks" / f"{page}.ipynb").exists()
    ]


def setup(app):
    app.connect("html-page-context", write, priority=100)  # before the foot is added
    app.connect("env-updated", without_notebook)
