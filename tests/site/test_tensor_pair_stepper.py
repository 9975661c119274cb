"""The stepper of a column-row pair: by keyboard, by its table, and its bytes are the formula's."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from bs4 import BeautifulSoup

PAGE = "lessons/tensor_parallel.html"
X = 4 * 4 * 4  # bytes of X: rows, columns, float32
STEPS = [
    *("start", "into the pair", "columns", "rows", "out of the pair"),
    *("back into it", "back: rows", "back: columns", "back out of it"),
]


@pytest.fixture(scope="module")
def box(site: Path) -> Any:
    page = BeautifulSoup((site / PAGE).read_text(encoding="utf-8"), "html.parser")
    return page.select_one(".course-stepper")


@pytest.fixture(scope="module")
def cases(box: Any) -> dict[str, Any]:
    record = json.loads(box.select_one("script").string)
    return {case: sides["pair"] for case, sides in record["cases"].items()}


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("kind", ["tensor", "sequence"])
def test_both_kinds_send_two_all_reduces_of_x(cases: dict, ranks: int, kind: str) -> None:
    frames = cases[f"{ranks} {kind}"]
    assert [frame["label"] for frame in frames] == STEPS
    all_reduce = 2 * (ranks - 1) / ranks * X
    assert frames[STEPS.index("out of the pair")]["sent"] == all_reduce
    assert frames[-1]["sent"] == 2 * all_reduce
    calls = [frame["call"] for frame in frames if frame["call"]]
    half = ["all_gather", "reduce_scatter"]
    assert calls == (["all_reduce"] * 2 if kind == "tensor" else half * 2)


@pytest.mark.parametrize("ranks", [2, 4])
def test_with_sequence_parallelism_each_rank_begins_and_ends_with_its_rows(
    cases: dict, ranks: int
) -> None:
    for frame in (cases[f"{ranks} sequence"][i] for i in (0, STEPS.index("out of the pair"), -1)):
        assert len(set(frame["holds"])) == ranks, frame["holds"]
        assert all("row" in held for held in frame["holds"])
    assert set(cases[f"{ranks} tensor"][-1]["holds"]) == {"dX: whole"}


def test_its_table_has_every_step_of_every_case(box: Any, cases: dict) -> None:
    tables = box.select("[data-case]")
    assert [table["data-case"] for table in tables] == [*cases]
    for table in tables:
        heads = [head.get_text(strip=True) for head in table.select("tbody th")]
        assert heads == STEPS


def test_every_step_can_be_reached_by_keyboard(open_page: Callable) -> None:
    page = open_page(PAGE)
    page.locator(".course-stepper .course-stage").focus()
    page.keyboard.press("Home")
    seen = [page.locator(".course-movements [aria-current]").inner_text()]
    for _ in STEPS[1:]:
        page.keyboard.press("ArrowRight")
        seen.append(page.locator(".course-movements [aria-current]").inner_text())
    assert seen == STEPS
