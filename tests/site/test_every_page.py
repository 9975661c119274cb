"""Every page, as a reader's browser shows it: quiet, alone, accessible, as wide as the screen."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

# A page of each kind. `make test` looks at these, `make test-all` at the others, too.
FIVE = {
    "index.html",
    "lessons/data_parallel_by_hand.html",
    "_notebooks/ranks.html",
    "exercises/collectives.html",
    "getting_started.html",
}
DESKTOP, PHONE = {"width": 1280, "height": 900}, {"width": 390, "height": 844}
# Stop all motion, unfold what is folded away.
PREPARE = """() => {
  const quiet = document.createElement("style");
  quiet.textContent = `*, *::before, *::after {
    transition: none !important; animation: none !important; }`;
  document.head.append(quiet);
  document.querySelectorAll("details").forEach(box => { box.open = true; });
}"""
# Contrast is most of axe's work. Elements that are alike, with all that is in them and around them,
# have the same colors, on whatever page, so only the first one stays. What is known of the pages
# before goes in, and comes out with what this page adds.
ONE_OF_A_KIND = """([texts, places]) => {
  const numbers = new Map(texts.map((text, n) => [text, n])), seen = new Set(places);
  const inside = new Map();
  const number = text => numbers.get(text) ?? numbers.set(text, numbers.size).get(text);
  const kind = element => [
    element.tagName, ...["class", "style", "fill"].map(name => element.getAttribute(name)),
    [...element.childNodes].some(node => node.nodeType === Node.TEXT_NODE && node.data.trim()),
  ].join();
  const read = element => {
    inside.set(element, number(kind(element) + [...element.children].map(read)));
    return inside.get(element);
  };
  const keep = (element, around) => {
    const whole = around + " " + inside.get(element);
    if (seen.has(whole)) element.remove();
    else [...element.children].forEach(child => keep(child, number(around + kind(element))));
    seen.add(whole);
  };
  read(document.body);
  keep(document.body, 0);
  return [[...numbers.keys()], [...seen]];
}"""
WHOLE = "() => document.body.replaceWith(window.whole)"
THEME = "name => { document.documentElement.dataset.theme = name; }"
# Colors depend on the theme only, everything else on the width only: each rule runs where it can
# find something new.
RUN_AXE = """async (rules) => {
  const found = await axe.run(document, { resultTypes: ["violations"], preload: false, ...rules });
  return found.violations.flatMap(rule => rule.nodes.map(node =>
    `${rule.id}: ${node.target} ${node.html.slice(0, 120)}`));
}"""
COLORS = ["color-contrast", "link-in-text-block"]
ONLY_COLORS = {"runOnly": COLORS}
NO_COLORS = {rule: {"enabled": False} for rule in COLORS}
# On a phone fingers must hit what is to be hit; axe leaves that out unless it is asked.
FOR_FINGERS = NO_COLORS | {"target-size": {"enabled": True}}
# The shapes of a picture and the colored words of a program are thousands of elements that these
# rules have nothing to do with.
FEWER = """() => {
  window.whole = document.body.cloneNode(true);
  document.querySelectorAll(
    "svg :is(path, rect, circle, line, polygon, polyline):not([role], [tabindex])"
  ).forEach(shape => shape.remove());
  document.querySelectorAll(":is(pre, code, .sig) span")
    .forEach(word => word.replaceWith(...word.childNodes));
}"""


@pytest.fixture(scope="module")
def axe(node_module: Callable[[str], Path]) -> str:
    """axe, for every document that a tab loads."""
    return (node_module("axe-core") / "axe.min.js").read_text(encoding="utf-8")


# In quarters, for several test processes.
OTHERS = [pytest.param(k, marks=pytest.mark.slow, id=f"others {k + 1} of 4") for k in range(4)]


@pytest.fixture(scope="module", params=["five pages", *OTHERS])
def visits(
    request: pytest.FixtureRequest, chromium: Any, site: Path, pages: list[Path], axe: str
) -> dict[str, dict[str, list]]:
    """Each page is looked at on a phone, in light and in dark."""
    chosen = [page for page in pages if str(page) in FIVE]
    if request.param != "five pages":
        chosen = [page for page in pages if str(page) not in FIVE][request.param :: len(OTHERS)]
    context = chromium.new_context(viewport=DESKTOP, reduced_motion="reduce")
    context.add_init_script(axe)
    tab = context.new_page()
    seen: dict[str, dict[str, list]] = {}
    known: list[list[str]] = [[], []]
    heard = Heard(tab)
    for page in chosen:
        tab.goto("about:blank")  # nothing more is heard of the page before
        heard.clear()
        seen[str(page)] = look(tab, heard, (site / page).as_uri(), known, whole=str(page) in FIVE)
    context.close()
    return seen


class Heard:
    """What a tab says to its console and asks of the network."""

    def __init__(self, tab: Any) -> None:
        self.errors: list[str] = []
        self.requests: list[str] = []
        tab.on("console", self.console)
        tab.on("pageerror", lambda error: self.errors.append(str(error)))
        tab.on("request", self.request)

    def clear(self) -> None:
        self.errors.clear()
        self.requests.clear()

    def console(self, message: Any) -> None:
        if message.type in ("error", "warning"):
            self.errors.append(message.text)

    def request(self, request: Any) -> None:
        if not request.url.startswith(("file:", "data:")):
            self.requests.append(request.url)


def look(
    tab: Any, heard: Heard, address: str, known: list[list[str]], *, whole: bool
) -> dict[str, list]:
    """What axe finds. Unless `whole`, a desktop is looked at for its colors alone: the other pages
    have the frame of the five, and their text is the same on a phone."""
    found: dict[str, list] = {"desktop": []}
    if whole:
        tab.set_viewport_size(DESKTOP)
        tab.goto(address)
        tab.evaluate(PREPARE)
        found["desktop"] = tab.evaluate(RUN_AXE, {"rules": NO_COLORS})
    tab.set_viewport_size(PHONE)
    tab.goto(address)
    tab.evaluate(PREPARE)
    width = tab.evaluate("document.documentElement.scrollWidth")
    found["wide"] = (
        [f"{width} px on a screen of {PHONE['width']}"] if width > PHONE["width"] else []
    )
    tab.evaluate(FEWER)
    found["phone"] = tab.evaluate(RUN_AXE, {"rules": FOR_FINGERS})
    # What the page's script says of elements that are gone, below, is no error of its own.
    found |= {"errors": [*heard.errors], "requests": [*heard.requests]}
    tab.evaluate(WHOLE)
    tab.set_viewport_size(DESKTOP)
    known[:] = tab.evaluate(ONE_OF_A_KIND, known)
    for theme in ("light", "dark"):
        tab.evaluate(THEME, theme)
        found[theme] = tab.evaluate(RUN_AXE, ONLY_COLORS)
    return found


def said(visits: dict[str, dict[str, list]], kind: str) -> Iterator[str]:
    return (f"{page}: {what}" for page, found in visits.items() for what in found[kind])


@pytest.mark.parametrize("view", ["desktop", "light", "dark", "phone"])
def test_no_page_has_an_accessibility_violation(visits: dict, view: str) -> None:
    assert not list(said(visits, view))


def test_no_page_writes_an_error_to_the_console(visits: dict) -> None:
    assert not list(said(visits, "errors"))


def test_no_page_asks_anything_of_the_network(visits: dict) -> None:
    assert not list(said(visits, "requests"))


def test_no_page_is_wider_than_a_phone(visits: dict) -> None:
    assert not list(said(visits, "wide"))


def test_the_five_pages_are_there(pages: list[Path]) -> None:
    assert set(map(str, pages)) >= FIVE
