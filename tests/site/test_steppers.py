"""The steppers: by keyboard, by buttons, by touch, without JavaScript; and what they show is so."""

import re
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest

from .conftest import MOVING, PHONE

DP = "lessons/data_parallel_by_hand.html"
RING = "lessons/server_to_all_reduce.html"
ATTENTION = "lessons/long_sequences.html"
PAIR = "lessons/tensor_parallel.html"
PAGES = (DP, RING, ATTENTION, PAIR)


@pytest.fixture
def record_of(recorded_in: Callable) -> Callable[[str], dict[str, Any]]:
    return lambda page: next(record for record in recorded_in(page) if "sides" in record)


@pytest.fixture
def frames_of(record_of: Callable) -> Callable[[str, str], list[dict[str, Any]]]:
    """``frames_of(page, case)``: those of the last side of a case."""
    return lambda page, case: [*record_of(page)["cases"][case].values()][-1]


def labels(frames: list[dict[str, Any]]) -> list[str]:
    return [frame["label"] for frame in frames]


# --- one step of data parallelism ----------------------------------------------------------------

MOVEMENTS = ["start", "split", "replicate", "parallel_apply", "gather", "backward",
             "sum_gradients", "step", "broadcast", "next_forward"]  # fmt: skip


def moved(frames: list[dict], movement: str) -> list[tuple[str, str, int]]:
    frame = next(frame for frame in frames if frame["movement"] == movement)
    return sorted((copy["source"], copy["target"], copy["bytes"]) for copy in frame["copies"])


@pytest.mark.parametrize("gpus", [2, 4])
def test_the_recorded_bytes_are_those_of_the_formulas(record_of: Callable, gpus: int) -> None:
    record = record_of(DP)
    rows, weights = record["rows"], record["weights"]
    size = -(-rows // gpus)
    chunks = [min(size, rows - start) for start in range(0, rows, size)]
    others = range(1, gpus)
    out = [("cuda:0", f"cuda:{i}", weights) for i in others]
    back = [(f"cuda:{i}", "cuda:0", weights) for i in others]
    image, scores = 4 * 8 * 8, 4 * 10
    for side in ("hand", "dp"):
        frames = record["cases"][str(gpus)][side]
        assert [frame["movement"] for frame in frames] == MOVEMENTS
        assert moved(frames, "split") == [
            ("cpu", f"cuda:{i}", image * chunk) for i, chunk in enumerate(chunks)
        ]
        assert moved(frames, "replicate") == out
        assert moved(frames, "parallel_apply") == []
        assert moved(frames, "gather") == [
            (f"cuda:{i}", "cuda:0", scores * chunks[i]) for i in others
        ]
        assert moved(frames, "sum_gradients") == back
        assert moved(frames, "step") == []
        assert frames[6]["holds"][0]["gradients"] == "whole"
    assert moved(record["cases"][str(gpus)]["hand"], "broadcast") == out


def test_nn_data_parallel_sends_no_broadcast_but_replicates_again(record_of: Callable) -> None:
    frames = record_of(DP)["cases"]["3"]["dp"]
    assert moved(frames, "broadcast") == []
    again = set(moved(frames, "next_forward"))
    assert again == {*moved(frames, "split"), *moved(frames, "replicate")}
    after_step = frames[MOVEMENTS.index("step")]["holds"]
    assert [held["weights"] for held in after_step] == [1, None, None]
    assert [held["weights"] for held in frames[-1]["holds"]] == [1] * 3


# --- the ring, ring attention, a column-row pair -------------------------------------------------


@pytest.mark.parametrize("ranks", [2, 4])
def test_every_rank_ends_with_every_complete_sum(frames_of: Callable, ranks: int) -> None:
    frames = frames_of(RING, str(ranks))
    rounds = range(1, ranks)
    steps = [*(f"add {i}" for i in rounds), *(f"copy {i}" for i in rounds)]
    assert labels(frames) == ["start", *steps]
    assert frames[0]["holds"] == [[str(rank)] * ranks for rank in range(ranks)]
    everyone = "+".join(map(str, range(ranks)))
    assert [held.count(everyone) for held in frames[ranks - 1]["holds"]] == [1] * ranks
    assert frames[-1]["holds"] == [[everyone] * ranks] * ranks
    sent = sum(copy["bytes"] for frame in frames for copy in frame["copies"])
    assert sent == 2 * (ranks - 1) * 12 * 8  # twelve numbers of eight bytes
    assert frames[-1]["total"].startswith(f"{sent // ranks} B ")


@pytest.mark.parametrize("mask", ["none", "causal"])
def test_the_block_that_arrives_is_used_in_the_next_step(frames_of: Callable, mask: str) -> None:
    frames, ranks = frames_of(ATTENTION, mask), 4
    steps = [f"{direction} {i}" for direction in ("forward", "backward") for i in (1, 2, 3, 4)]
    assert labels(frames) == ["start", *steps, "end"]
    for now, after in pairwise(frames[1:-1]):
        for held, later in zip(now["holds"], after["holds"], strict=True):
            if "arriving" in held:
                assert later["in use"] == held["arriving"]
    for rank, held in enumerate(frames[-1]["holds"]):
        parts = "+".join(map(str, range(rank if mask == "causal" else 0, ranks)))
        assert held == {"in use": f"block {rank}", "its gradient, by rank": parts}
    idle = [[], [0], [0, 1], [0, 1, 2]] if mask == "causal" else [[]] * ranks
    assert [frame["idle"] for frame in frames[1:-1]] == idle * 2
    block = 2 * 2 * 16 * 8 * 8  # bytes of keys and values: 2 heads, 16 tokens, width 8
    sent = sum(copy["bytes"] for frame in frames for copy in frame["copies"])
    assert sent == ranks * (2 * (ranks - 1) + ranks) * block  # forward, backward, gradients


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("kind", ["tensor", "sequence"])
def test_both_kinds_send_two_all_reduces_of_x(frames_of: Callable, ranks: int, kind: str) -> None:
    frames = frames_of(PAIR, f"{ranks} {kind}")
    middle = frames[labels(frames).index("out of the pair")]
    all_reduce = 2 * (ranks - 1) / ranks * 4 * 4 * 4  # X: rows, columns, float32
    assert middle["sent"] == all_reduce
    assert frames[-1]["sent"] == 2 * all_reduce
    calls = [frame["call"] for frame in frames if frame["call"]]
    if kind == "tensor":
        assert calls == ["all_reduce"] * 2
        assert set(frames[-1]["holds"]) == {"dX: whole"}
        return
    assert calls == ["all_gather", "reduce_scatter"] * 2
    for frame in (frames[0], middle, frames[-1]):  # each rank has its rows
        assert len(set(frame["holds"])) == ranks, frame["holds"]
        assert all("row" in held for held in frame["holds"])


# --- how they are used ---------------------------------------------------------------------------


def current(page: Any) -> str:
    return page.locator(".course-movements [aria-current]").inner_text()


def stage(page: Any) -> Any:
    return page.locator(".course-stepper .course-stage")


@pytest.mark.parametrize("name", PAGES)
def test_every_step_can_be_reached_by_keyboard(
    open_page: Callable, record_of: Callable, name: str
) -> None:
    record = record_of(name)
    shown = " ".join(choice["chosen"] for choice in record["choices"])
    steps = labels([*record["cases"][shown].values()][-1])
    page = open_page(name)
    stage(page).focus()
    page.keyboard.press("Home")
    seen = [current(page)]
    for _ in steps[1:]:
        page.keyboard.press("ArrowRight")
        seen.append(current(page))
    assert seen == steps
    page.keyboard.press("ArrowRight")
    assert current(page) == seen[-1]
    page.keyboard.press("ArrowLeft")
    assert current(page) == seen[-2]
    page.keyboard.press("End")
    assert current(page) == seen[-1]


@pytest.mark.parametrize("name", PAGES)
def test_without_javascript_every_step_stands_in_a_table(
    open_page: Callable, record_of: Callable, name: str
) -> None:
    page = open_page(name, java_script_enabled=False)
    tables = page.locator(".course-stepper table")
    cases = record_of(name)["cases"]
    assert tables.count() == len(cases)
    for table, sides in zip(tables.all(), cases.values(), strict=True):
        assert table.is_visible()
        words = table.inner_text()
        for frame in (frame for frames in sides.values() for frame in frames):
            assert frame["label"] in words
            assert frame["says"] in words
            for copy in frame["copies"]:
                ends = (copy[end].replace("cuda:", "GPU ") for end in ("source", "target"))
                arrow = " → ".join(ends).replace("cpu", "CPU")
                assert re.search(rf"{arrow}: .*\b{copy['bytes']:,} B", words)


def test_the_focus_follows_the_movement(open_page: Callable) -> None:
    page = open_page(DP)
    page.get_by_role("button", name="gather").focus()
    page.keyboard.press("Home")
    page.keyboard.press("ArrowRight")
    assert page.evaluate("document.activeElement.textContent") == current(page) == "split"


def test_buttons_step_and_space_plays_and_pauses(open_page: Callable) -> None:
    page = open_page(RING)
    page.get_by_role("button", name="add 2").click()
    page.get_by_role("button", name="Next →").click()
    assert current(page) == "add 3"
    page.get_by_role("button", name="← Back").click()
    assert current(page) == "add 2"
    stage(page).focus()
    page.keyboard.press("Space")
    assert page.get_by_role("button", name="Pause").is_visible()
    page.keyboard.press("Space")
    assert page.get_by_role("button", name="Play").is_visible()


def test_another_number_of_ranks_has_other_steps(open_page: Callable, frames_of: Callable) -> None:
    page = open_page(RING)
    stage(page).focus()
    page.keyboard.press("End")
    page.locator(".course-stepper").get_by_role("radio", name="4").focus()
    page.keyboard.press("ArrowLeft")
    assert page.locator(".course-stepper").get_by_role("radio", name="3").is_checked()
    buttons = page.locator(".course-movements button").all_inner_texts()
    assert buttons == labels(frames_of(RING, "3"))
    assert current(page) == "copy 2", "the last step there is"
    drawn = page.locator(".course-film text").all_text_contents()
    assert "rank 2" in drawn
    assert "rank 3" not in drawn


def test_each_step_is_said_with_its_bytes(open_page: Callable, record_of: Callable) -> None:
    page = open_page(DP)
    page.get_by_role("button", name="sum_gradients").click()
    said = stage(page).get_by_role("status").inner_text()
    assert re.match(r"sum_gradients\D+6\D+9\b", said)
    assert re.search(rf"GPU 1\D+GPU 0\D+\b{record_of(DP)['weights']:,} B", said)
    assert "By hand:" in said
    assert "nn.DataParallel:" in said


def test_the_drawings_label_every_message_with_its_bytes(
    open_page: Callable, record_of: Callable
) -> None:
    page = open_page(DP)
    page.get_by_role("button", name="broadcast").click()
    by_hand, data_parallel = page.locator(".course-drawing").all()
    weights = f"{record_of(DP)['weights']:,} B"
    assert by_hand.locator(".amount").all_text_contents() == [weights] * 3
    assert data_parallel.locator(".copy").count() == 0
    page = open_page(RING)
    page.get_by_role("button", name="copy 1").click()
    assert page.locator(".course-film .stripes").count() == 4
    assert page.locator(".course-film text").all_text_contents().count("24 B") == 4
    page.get_by_role("button", name="start").click()
    assert page.locator(".course-film .stripes").count() == 0


def test_reduced_motion_stops_the_animation(open_page: Callable) -> None:
    page = open_page(RING)
    page.get_by_role("button", name="Next →").click()
    assert page.evaluate(MOVING) == 0
    page.emulate_media(reduced_motion="no-preference")
    for _ in range(2):
        page.get_by_role("button", name="Next →").click()
    assert page.evaluate(MOVING) > 0


def test_on_a_phone_a_swipe_steps_on_and_the_buttons_stay_in_sight(open_page: Callable) -> None:
    page = open_page(DP, **PHONE)
    before = current(page)
    page.locator(".course-drawing").first.evaluate("""drawing => {
        const at = (x) => new Touch({ identifier: 1, target: drawing, clientX: x, clientY: 200 });
        const fire = (name, touch) => drawing.dispatchEvent(new TouchEvent(name,
          { bubbles: true, touches: [touch], changedTouches: [touch] }));
        fire("touchstart", at(300)); fire("touchend", at(100)); }""")
    assert before == "split"
    assert current(page) == "replicate"
    page.evaluate("document.querySelector('.course-sides').scrollIntoView({ block: 'start' })")
    box = page.locator(".course-buttons").bounding_box()
    assert box is not None
    assert box["y"] + box["height"] <= PHONE["viewport"]["height"]


def test_the_notebooks_film_goes_by_arrow_keys_without_any_script(
    open_page: Callable, frames_of: Callable
) -> None:
    page = open_page("_notebooks/ranks.html", java_script_enabled=False)
    film = page.locator("fieldset:has(input[type=radio])").first
    steps = film.locator("input")
    assert film.locator("label").all_text_contents() == labels(frames_of(RING, "4"))
    film.locator("label").nth(2).click()
    page.keyboard.press("ArrowRight")
    assert steps.nth(3).is_checked()
    shown = [picture.is_visible() for picture in film.locator("svg").all()]
    assert shown == [number == 3 for number in range(7)]
