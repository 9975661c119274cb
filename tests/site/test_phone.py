"""Tables on a phone: those of words fit it, and names of usual length stay whole."""

from collections.abc import Callable

PHONE = {"width": 390, "height": 844}
TOO_WIDE = "all => all.map(box => box.scrollWidth - box.clientWidth)"
LINES = """all => all.map(name =>
  Math.round(name.offsetHeight / parseFloat(getComputedStyle(name).lineHeight)))"""


def test_the_tables_of_the_architecture_fit(open_page: Callable) -> None:
    page = open_page("reference/architecture.html", viewport=PHONE)
    assert page.locator(".course-html:has(td)").evaluate_all(TOO_WIDE) == [0, 0, 0]


def test_a_name_in_the_first_column_is_not_broken(open_page: Callable) -> None:
    page = open_page("lessons/data_parallel_by_hand.html", viewport=PHONE)
    names = page.locator("td:first-child .pre")
    assert "parallel_apply" in names.all_inner_texts()
    assert set(names.evaluate_all(LINES)) == {1}
