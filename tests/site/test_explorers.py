"""Explorers: they show what the package computes, for a keyboard, a finger and no script."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from bs4 import BeautifulSoup

from multigpu.scaling.formulas import all_reduce_bytes, memory_per_gpu
from multigpu.scaling.pipeline_times import bubble
from multigpu.scaling.plan import Layout, plan
from multigpu.scaling.specs import cluster_of, model_of

from .conftest import MOVING, PHONE

MEMORY, BUBBLE = "lessons/sharding.html", "lessons/pipeline.html"
TRAFFIC = "lessons/server_to_all_reduce.html"
PLAN = "reference/planner.html"
MESH = "lessons/mesh.html"


@pytest.fixture
def record_of(recorded_in: Callable) -> Callable[[str], dict[str, Any]]:
    return lambda page: next(record for record in recorded_in(page) if "sides" not in record)


def explorer(page: Any) -> Any:
    return page.locator(".course-explorer:has(.course-result)")


def test_traffic_is_that_of_the_formulas_and_of_the_pages_own_runs(
    record_of: Callable, site: Path
) -> None:
    cases = record_of(TRAFFIC)["cases"]
    for case, shown in cases.items():
        gpus, weights = map(int, case.split())
        ring = all_reduce_bytes(gpus, weights)
        server = 2 * gpus * weights
        assert shown["busiest"] == {"server": server, "ring": 2 * ring}
        assert shown["total"] == {"server": server, "ring": gpus * ring}
    soup = BeautifulSoup((site / TRAFFIC).read_text(encoding="utf-8"), "html.parser")
    table = next(each for each in soup.select("table") if "counted" in each.caption.get_text())
    for row in table.select("tbody tr"):
        gpus, *counted = (cell.get_text().strip().replace(",", "") for cell in row.select("td"))
        shown = cases[f"{gpus} 9600"]
        computed = [*shown["total"].values(), *shown["busiest"].values()]
        assert [int(count) for count in counted] == computed


def planned_by_the_package(model: str, cluster: str, gpus: int, how: dict[str, Any]) -> Any:
    layout = Layout(dp=gpus // how["tp"] // how["pp"], **how)
    made = model_of(model)
    return plan(made, cluster_of(cluster, gpus=gpus), layout, global_batch=2**22 // made.seq)


def test_a_layout_is_planned_by_keyboard_and_one_that_is_none_says_so(open_page: Callable) -> None:
    page = open_page(PLAN)
    box = explorer(page)
    box.get_by_role("group", name="ZeRO").get_by_role("radio", name="1").focus()
    page.keyboard.press("ArrowRight")
    how = {"tp": 1, "pp": 1, "zero": 2, "recompute": "selective"}
    expected = planned_by_the_package("llama-3-8b", "H100", 64, how)
    said = box.locator(".course-result").inner_text()
    assert f"{expected.step_seconds:.2f} s" in said
    assert f"{expected.tokens_per_second_per_gpu:,.0f} tokens/s" in said
    for group in ("Tensor", "Pipeline"):
        box.get_by_role("group", name=group).get_by_role("radio", name="8").check()
    box.get_by_role("group", name="GPUs").get_by_role("radio", name="8").check()
    assert re.search(r"\b8 GPUs\b.*\btp 8 · pp 8", box.locator(".course-result").inner_text())
    assert box.locator(".course-bar").count() == 0


def test_on_a_phone_a_tap_plans_and_says_what_does_not_fit(open_page: Callable) -> None:
    page = open_page(PLAN, **PHONE)
    box = explorer(page)
    box.get_by_role("radio", name="GPT-3 175B").tap()
    said = box.locator(".course-result").inner_text()
    assert re.search(r"too much for 80 GiB \(weights \d", said)
    assert "✗" in box.locator(".course-over").inner_text()
    assert page.evaluate("document.documentElement.scrollWidth") == 390


def test_stage_and_gpus_are_chosen_by_keyboard_alone(open_page: Callable) -> None:
    page = open_page(MEMORY)
    box = explorer(page)
    box.get_by_role("radio", name="ZeRO-2").focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Tab")
    page.keyboard.press("ArrowLeft")
    assert page.evaluate("document.activeElement.value") == "16"
    total = memory_per_gpu(7_500_000_000, stage=3, gpus=16).total
    said = box.locator(".course-result").inner_text()
    assert re.match(rf"ZeRO-3\D*\b16 GPUs\D*\b{total / 1e9:.1f} GB", said)
    assert f" {80 - total / 1e9:.1f} GB" in said
    assert box.locator(".course-chosen").inner_text().startswith("ZeRO-3")


def test_on_a_phone_a_tap_chooses_and_the_bars_say_what_fits(open_page: Callable) -> None:
    page = open_page(MEMORY, **PHONE)
    box = explorer(page)
    for name in ("70", "ZeRO-1"):
        choice = box.get_by_role("radio", name=name, exact=True)
        assert min(choice.bounding_box()[side] for side in ("width", "height")) >= 24
        choice.tap()
    total = memory_per_gpu(70_000_000_000, stage=1, gpus=64).total
    assert f"{total / 1e9:.1f} GB ✗" in box.locator(".course-chosen").inner_text()
    assert re.search(r"too much\D*\b80 GB", box.locator(".course-result").inner_text())
    verdicts = box.locator(".course-row .course-side span").all_inner_texts()
    assert [each.split()[-1] for each in verdicts] == ["much", "much", "much", "fits"]


def test_the_bubble_follows_the_choice_and_its_blocks_are_read_by_keyboard(
    open_page: Callable,
) -> None:
    page = open_page(BUBBLE)
    box = explorer(page)
    box.get_by_role("radio", name="1F1B").focus()
    page.keyboard.press("ArrowLeft")
    assert f" {bubble(4, 8):.0%} " in box.locator(".course-result").inner_text()
    assert box.locator(".course-block").count() == 2 * 4 * 8
    page.keyboard.press("Tab")
    for key in ("End", "ArrowDown", "ArrowLeft"):
        page.keyboard.press(key)
    said = box.locator(".course-reading p").inner_text()
    assert re.fullmatch(r"rank 1\W+backward\D+6\D+27\D+29", said)
    assert box.locator(".course-too").count() == 2 * 4 - 1  # the way of micro-batch 6


def test_a_tap_beside_a_thin_block_reads_the_nearest(open_page: Callable) -> None:
    page = open_page(BUBBLE, **PHONE)
    box = explorer(page)
    box.get_by_role("radio", name="1", exact=True).tap()
    lane = box.locator(".course-time").nth(3).bounding_box()
    page.touchscreen.tap(lane["x"] + 2, lane["y"] + 3)  # empty: rank 3 waits there
    said = box.locator(".course-reading p")
    assert re.fullmatch(r"rank 3\W+forward\D+0\D+3\D+4", said.inner_text())
    box.get_by_role("button", name="The next bar").tap()
    assert re.fullmatch(r"rank 3\W+backward\D+0\D+4\D+6", said.inner_text())


def test_server_and_ring_move_only_for_who_likes_motion(open_page: Callable) -> None:
    page = open_page(TRAFFIC)
    box = explorer(page)
    box.get_by_role("radio", name="8", exact=True).focus()
    page.keyboard.press("ArrowRight")
    assert box.locator("circle").count() == 16 + 1 + 16
    busiest = 2 * 16 * 9_600, 2 * all_reduce_bytes(16, 9_600)
    shown = rf"\b{busiest[0]:,} B\D*server\D*\b{busiest[1]:,.0f} B\D*ring"
    assert re.search(shown, box.locator(".course-result").inner_text())
    assert page.evaluate(MOVING) == 0
    page.emulate_media(reduced_motion="no-preference")
    assert page.evaluate(MOVING) == 2 * 16


def test_a_mesh_shows_the_groups_of_each_direction(
    record_of: Callable, open_page: Callable
) -> None:
    for case, shown in record_of(MESH)["cases"].items():
        ranks, tp, pp = map(int, case.split())
        mesh = torch.arange(ranks).view(pp, -1, tp)
        for direction, dim in (("pp", 0), ("dp", 1), ("tp", 2)):
            groups = mesh.movedim(dim, -1).reshape(-1, mesh.shape[dim]).tolist()
            assert sorted(shown[direction]["groups"]) == sorted(groups)
    box = explorer(open_page(MESH, **PHONE))
    box.get_by_role("radio", name="data parallel (dp)").check(force=True)
    cells = box.locator(".course-mesh span").all_inner_texts()
    assert [cell.split() for cell in cells[:4]] == [["0", "A"], ["1", "B"], ["2", "A"], ["3", "B"]]
    assert "4 dp groups of 2 ranks 2 apart" in box.locator(".course-result").inner_text()


@pytest.mark.parametrize(
    ("page", "numbers"),
    [(MEMORY, ("120.0 GB", "31.4 GB", "16.6 GB", "1.9 GB")), (BUBBLE, ("27%; 4 of 8", "16%; 11")),
     (TRAFFIC, ("76,800 B", "28,800 B", "57,600 B")), (PLAN, ("nothing fits", "tokens/s")),
     (MESH, ("0 2; 1 3; 4 6; 5 7", "0 4; 1 5; 2 6; 3 7"))],
)  # fmt: skip
def test_without_javascript_an_explorer_is_a_table(
    open_page: Callable, page: str, numbers: tuple[str, ...]
) -> None:
    tables = open_page(page, java_script_enabled=False).locator(".course-explorer .course-grid")
    assert tables.last.is_visible()
    words = " ".join(tables.all_inner_texts())
    assert all(number in words for number in numbers)
