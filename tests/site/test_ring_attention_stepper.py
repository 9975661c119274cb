"""The stepper of ring attention: by keyboard, on a phone, without JavaScript; and its messages are
those of a traced run."""

import importlib.util
import json
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from bs4 import BeautifulSoup

PAGE = "lessons/long_sequences.html"
SOLUTION = Path(__file__).parents[2] / "solutions" / "context_parallel.py"
RANKS, BLOCK = 4, 2 * 1 * 2 * 16 * 8 * 8  # bytes of keys and values: 2 heads, 16 tokens, width 8
STEPS = [f"{direction} {i}" for direction in ("forward", "backward") for i in (1, 2, 3, 4)]


@pytest.fixture(scope="module")
def record(site: Path) -> dict[str, Any]:
    page = BeautifulSoup((site / PAGE).read_text(encoding="utf-8"), "html.parser")
    return json.loads(page.select_one(".course-stepper script").string)


def of_mask(record: dict[str, Any], mask: str) -> list[dict[str, Any]]:
    return record["cases"][mask]["ring"]


def traced(causal: bool) -> None:
    import torch

    spec = importlib.util.spec_from_file_location("context_parallel", SOLUTION)
    assert spec is not None
    assert spec.loader is not None
    solution = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(solution)
    q, k, v = (torch.randn(1, 2, 16, 8, dtype=torch.float64, requires_grad=True) for _ in range(3))
    solution.ring_attention(q, k, v, causal=causal).sum().backward()


@pytest.mark.slow
@pytest.mark.parametrize("mask", ["none", "causal"])
def test_its_messages_are_those_of_a_traced_run(record: dict, mask: str) -> None:
    from multigpu import run_ranks

    trace = run_ranks(traced, RANKS, mask == "causal", backend="gloo", show=False).trace
    sends = [call for call in trace.messages() if call.op == "send"]
    due = Counter((f"rank {c.rank}", f"rank {c.peer}", c.bytes) for c in sends)
    copies = [copy for frame in of_mask(record, mask) for copy in frame["copies"]]
    assert Counter((c["source"], c["target"], c["bytes"]) for c in copies) == due
    per_rank = (2 * (RANKS - 1) + RANKS) * BLOCK  # forward, backward, gradients
    assert sum(c["bytes"] for c in copies) == RANKS * per_rank


@pytest.mark.parametrize("mask", ["none", "causal"])
def test_what_arrives_is_used_in_the_next_step(record: dict, mask: str) -> None:
    frames = of_mask(record, mask)
    assert [frame["label"] for frame in frames] == ["start", *STEPS, "end"]
    for now, after in pairwise(frames[1:-1]):
        for held, later in zip(now["holds"], after["holds"], strict=True):
            if "arriving" in held:
                assert later["in use"] == held["arriving"]
    for rank, held in enumerate(frames[-1]["holds"]):
        first = rank if mask == "causal" else 0
        parts = "+".join(map(str, range(first, RANKS)))
        assert held == {"in use": f"block {rank}", "its gradient, by rank": parts}


def test_under_the_mask_earlier_ranks_are_idle(record: dict) -> None:
    idle = [frame["idle"] for frame in of_mask(record, "causal")]
    assert idle[1:5] == idle[5:9] == [[], [0], [0, 1], [0, 1, 2]]
    assert not any(frame["idle"] for frame in of_mask(record, "none"))


def current(page: Any) -> str:
    return page.locator(".course-movements [aria-current]").inner_text()


def test_every_step_can_be_reached_by_keyboard(open_page: Callable) -> None:
    page = open_page(PAGE)
    page.locator(".course-stepper .course-stage").focus()
    page.keyboard.press("Home")
    seen = [current(page)]
    for _ in range(len(STEPS) + 1):
        page.keyboard.press("ArrowRight")
        seen.append(current(page))
    assert seen == ["start", *STEPS, "end"]
    page.locator(".course-stepper").get_by_role("radio", name="none").focus()
    page.keyboard.press("ArrowRight")
    assert page.locator(".course-stepper").get_by_role("radio", name="causal").is_checked()
    assert current(page) == "end"


def test_without_javascript_every_message_is_in_a_table(open_page: Callable, record: dict) -> None:
    page = open_page(PAGE, java_script_enabled=False)
    tables = page.locator(".course-stepper table").all()
    for table, mask in zip(tables, ("none", "causal"), strict=True):
        assert table.is_visible()
        words = table.inner_text()
        for copy in (copy for frame in of_mask(record, mask) for copy in frame["copies"]):
            assert f"{copy['source']} → {copy['target']}: {copy['carries']}" in words


def test_on_a_phone_the_picture_is_no_wider_than_the_screen(open_page: Callable) -> None:
    page = open_page(PAGE, viewport={"width": 390, "height": 844})
    box = page.locator(".course-film svg").bounding_box()
    assert box is not None
    assert box["x"] >= 0
    assert box["x"] + box["width"] <= 390
