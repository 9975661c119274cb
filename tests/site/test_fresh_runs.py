"""Every page and notebook, run in a fresh kernel, gives what its record says, times aside."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import nbformat
import pytest

ROOT = Path(__file__).resolve().parents[2]
RECORDS = ROOT / "docs" / "records"
sys.path.insert(0, str(ROOT / "docs" / "_ext"))

from course import (  # noqa: E402 (found through sys.path)
    comparing,
    execution,
    kernels,
    records,
)
from course.explorers import cases  # noqa: E402

SECONDS_PER_CELL = 300


@pytest.fixture(scope="session")
def warm() -> Iterator[kernels.WarmKernels]:
    with kernels.WarmKernels(execution.environment()) as running:
        yield running


def cells(*sources: str) -> nbformat.NotebookNode:
    return nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(each) for each in sources])


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(path.stem for path in RECORDS.glob("*.ipynb")))
def test_a_fresh_run_gives_what_the_record_says(
    name: str, built_site: Path, warm: kernels.WarmKernels
) -> None:
    shown = nbformat.read(ROOT / records.SHOWN / f"{name}.ipynb", as_version=4)
    fresh = nbformat.from_dict(shown)
    for cell in fresh.cells:
        cell.outputs = []
    kind = name.partition("--")[0]
    folder = ROOT / ("notebooks" if kind == "notebooks" else "notebooks/lessons")
    execution.run(
        fresh,
        root=ROOT,
        folder=folder,
        seconds_per_cell=SECONDS_PER_CELL,
        rough=True,
        manager=warm.manager,
    )
    found = list(comparing.differences(shown, fresh))
    assert not found, "\n".join([f"make record {name.replace('--', '/')}", *found])


@pytest.mark.slow
def test_a_forked_kernel_has_modules_and_nothing_else(
    tmp_path: Path, warm: kernels.WarmKernels, monkeypatch: pytest.MonkeyPatch
) -> None:
    def printed(*sources: str) -> list[str]:
        notebook = cells(*sources)
        execution.run(
            notebook, root=ROOT, folder=tmp_path, seconds_per_cell=100, manager=warm.manager
        )
        return ["".join(output.text for output in cell.outputs) for cell in notebook.cells]

    look = """import os, sys
print("torch" in sys.modules, "kept" in globals(), os.environ.get("KEPT"), os.getcwd())"""
    draw = "import random, numpy, torch; print(random.random(), numpy.random.rand(), torch.rand(1))"
    ranks = """from multigpu import run_ranks
print(run_ranks(os.getppid, 2, show=False)[0] != os.getpid())"""
    monkeypatch.setenv("KEPT", "1")
    first, *_ = printed(look, "kept = os.environ['KEPT'] = 'changed'")
    monkeypatch.delenv("KEPT")
    second, drawn, on_ranks = printed(look, draw, ranks)
    assert first == f"True False 1 {tmp_path}\n"
    assert second == f"True False None {tmp_path}\n"
    assert on_ranks == "True\n"
    assert not set(drawn.split()) & set(printed(draw)[0].split())


@pytest.mark.slow
def test_a_forked_kernel_that_dies_is_noticed(tmp_path: Path, warm: kernels.WarmKernels) -> None:
    dying = cells("import os", "os._exit(1)")
    with pytest.raises(execution.CellFailed, match="the kernel died") as failed:
        execution.run(dying, root=ROOT, folder=tmp_path, seconds_per_cell=100, manager=warm.manager)
    assert failed.value.index == 1


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(path.stem for path in RECORDS.glob("*.json")))
def test_a_recorded_animation_comes_out_again(name: str) -> None:
    kept = json.loads((RECORDS / f"{name}.json").read_text(encoding="utf-8"))
    assert json.loads(cases.printed_by(cases.script_of(name))) == kept["recording"]


def test_numbers_that_differ_are_seen_and_times_are_not() -> None:
    def printed(text: str, *tags: str) -> nbformat.NotebookNode:
        cell = nbformat.v4.new_code_cell("run()", metadata={"tags": list(tags)})
        cell.outputs = [nbformat.v4.new_output("stream", name="stdout", text=text)]
        return nbformat.v4.new_notebook(cells=[cell])

    def differ(was: str, now: str, *tags: str) -> bool:
        return bool(list(comparing.differences(printed(was, *tags), printed(now, *tags))))

    assert differ("24,360 bytes", "24,361 bytes")
    assert differ("loss 0.583", "loss 0.683")
    assert differ("rank 0 returned", "rank 1 returned")
    assert differ("rank 0: ValueError", "rank 1: ValueError")
    assert not differ("ranks 0 and 1: OutOfMemoryError", "rank 0: OutOfMemoryError")
    assert differ("lr 1e-05", "lr 4e-05")
    assert differ("lr 1e-3", "lr 0")
    assert differ("accuracy 0.97", "accuracy 0.95")
    assert differ("0 GPUs", "1.5 GPUs")
    assert differ("rank 0 | 1\nrank 0 | 2", "rank 0 | 2\nrank 0 | 1")
    assert differ("1 cell", "1 cell more")
    assert differ("2 ranks, 1.9 times as fast", "2 processes, 1.7 times as fast", "varies")
    assert differ("a step takes 3.2 ms", "a step takes 14.8 ms")
    assert not differ("a step takes 3.2 ms", "a step takes 14.8 ms", "varies")
    assert not differ("6 checks passed  0.3 s", "6 checks passed  1.1 s")
    assert not differ("1.9 times as fast", "1.7 times as fast on a busy machine", "varies")
    assert not differ("rank 1 | a\nrank 0 | b\nend", "rank 0 | b\n\nrank 1 | a\nend")
    assert not differ("loss 0.5831", "loss 0.5832")
    assert not differ("apart by 3e-17", "apart by 1e-16")
    assert not differ("1.9 times as fast", "1.7 times as fast", "varies")
    assert not differ("cut before layers.2.norm", "cut before layers.3.attention", "varies")
    assert differ("cut before layers.2.norm", "cut before layers.3.norm")


def test_a_value_that_is_made_of_times_may_differ_too() -> None:
    def cell(source: str, *tags: str) -> nbformat.NotebookNode:
        return nbformat.v4.new_code_cell(source, metadata={"tags": list(tags)})

    cells = [
        cell("import os\nrows = 10\ndef clock():\n    return perf_counter()"),
        cell("import sys\ntimes = [clock() for _ in range(rows)]", "varies"),
        cell("def fastest():\n    return min(times)"),
        cell("print(fastest())", "value"),
        cell("print(rows, os.sep, sys.path)", "value"),
        cell("times = [1, 2]"),
        cell("print(times)", "value"),
    ]
    assert list(comparing.varying(cells)) == [False, True, False, True, False, False, False]


def test_a_value_may_name_another_of_the_things_that_were_timed() -> None:
    def page(table: str, slowest: str) -> nbformat.NotebookNode:
        cells = [
            nbformat.v4.new_code_cell("took = timed()", metadata={"tags": ["varies"]}),
            nbformat.v4.new_code_cell("slowest = max(took, key=took.get)"),
            nbformat.v4.new_code_cell("print(slowest)", metadata={"tags": ["value"]}),
        ]
        for cell, text in zip(cells, (table, "", slowest), strict=True):
            cell.outputs = [nbformat.v4.new_output("stream", name="stdout", text=text)]
        return nbformat.v4.new_notebook(cells=cells)

    def differ(slowest: str, table: str = "wide 3 ms, deep 5 ms") -> bool:
        recorded = page("wide 3 ms, deep 2 ms", "wide")
        return bool(list(comparing.differences(recorded, page(table, slowest))))

    assert not differ("wide")
    assert not differ("deep")
    assert differ("long")  # nothing of that name was timed
    assert differ("long", "wide 3 ms, deep 2 ms, long 5 ms")  # nor when it was recorded
    assert differ("")
