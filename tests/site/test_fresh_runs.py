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

from course import execution, records  # noqa: E402 (found through sys.path)
from course.explorers import cases  # noqa: E402

from multigpu.scaling.comparison import Machine  # noqa: E402

from . import comparing, kernels  # noqa: E402

SECONDS_PER_CELL = 300
# What cells tagged `varies` repeat, or compute on many rows, only to give steady times.
LESS = {
    "lessons--cost": {
        'processes=9 if name == "SmallGPT" else 3': "processes=1",
        "processes=3": "processes=1",
        "partial(gpt, 64, 64, 4)": "partial(gpt, 8, 64, 4)",
        "partial(gpt, 16, 256, 4)": "partial(gpt, 4, 256, 4)",
        "partial(gpt, 16, 128, 8)": "partial(gpt, 4, 128, 8)",
        "partial(gpt, 8, 128, 4, 256)": "partial(gpt, 1, 128, 4, 256)",
        "partial(cnn, 128)": "partial(cnn, 16)",
    },
    "lessons--one_gpu": {"range(20)": "range(2)"},
    "lessons--pipeline": {
        "1024, 256, 6)": "128, 64, 3)",
        "width=1024, rows=256, steps=6": "width=128, rows=64, steps=3",
        "range(5)": "range(1)",
    },
    "lessons--precision": {"(16, LENGTH)": "(2, LENGTH)"},
    "notebooks--multi_GPU": {"range(25)": "range(6)"},
    "notebooks--pipeline": {"steps=6": "steps=3"},
}


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
    steadied = [cell for cell in fresh.cells if "varies" in cell.metadata.get("tags", [])]
    for many, few in LESS.get(name, {}).items():
        assert any(many in cell.source for cell in steadied), f"no cell has {many}"
        for cell in steadied:
            cell.source = cell.source.replace(many, few)
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
def test_a_recorded_animation_comes_out_again(
    name: str, tmp_path: Path, warm: kernels.WarmKernels
) -> None:
    kept = json.loads((RECORDS / f"{name}.json").read_text(encoding="utf-8"))
    script = cases.script_of(name)
    run = cells(f"import runpy\n_ = runpy.run_path({str(script)!r}, run_name='__main__')")
    execution.run(run, root=ROOT, folder=tmp_path, seconds_per_cell=100, manager=warm.manager)
    printed = [output.text for output in run.cells[0].outputs if output.name == "stdout"]
    assert json.loads("".join(printed)) == kept["recording"]


OTHER = [  # what was printed, what is printed now, and the cell's tags
    ("24,360 bytes", "24,361 bytes"),
    ("loss 0.583", "loss 0.683"),
    ("rank 0: ValueError", "rank 1: ValueError"),
    ("lr 1e-05", "lr 4e-05"),
    ("lr 1e-3", "lr 0"),
    ("0 GPUs", "1.5 GPUs"),
    ("rank 0 | 1\nrank 0 | 2", "rank 0 | 2\nrank 0 | 1"),
    ("1 cell", "1 cell more"),
    ("2 ranks, 1.9 times as fast", "2 processes, 1.7 times as fast", "varies"),
    ("a step takes 3.2 ms", "a step takes 14.8 ms"),
    ("cut before layers.2.norm", "cut before layers.3.norm"),
]
ALIKE = [
    ("ranks 0 and 1: OutOfMemoryError", "rank 0: OutOfMemoryError"),
    ("a step takes 3.2 ms", "a step takes 14.8 ms", "varies"),
    ("6 checks passed  0.3 s", "6 checks passed  1.1 s"),
    ("1.9 times as fast", "1.7 times as fast on a busy machine", "varies"),
    ("rank 1 | a\nrank 0 | b\nend", "rank 0 | b\n\nrank 1 | a\nend"),
    ("loss 0.5831", "loss 0.5832"),
    ("apart by 3e-17", "apart by 1e-16"),
    ("cut before layers.2.norm", "cut before layers.3.attention", "varies"),
]


def test_numbers_that_differ_are_seen_and_times_are_not() -> None:
    def printed(text: str, *tags: str) -> nbformat.NotebookNode:
        cell = nbformat.v4.new_code_cell("run()", metadata={"tags": list(tags)})
        cell.outputs = [nbformat.v4.new_output("stream", name="stdout", text=text)]
        return nbformat.v4.new_notebook(cells=[cell])

    def differ(was: str, now: str, *tags: str) -> bool:
        return bool(list(comparing.differences(printed(was, *tags), printed(now, *tags))))

    assert [case for case in OTHER if not differ(*case)] == []
    assert [case for case in ALIKE if differ(*case)] == []


@pytest.mark.parametrize("tags", [[], ["varies"]])
def test_a_record_may_be_of_another_processor(tags: list[str]) -> None:
    def page(processor: str) -> nbformat.NotebookNode:
        cell = nbformat.v4.new_code_cell("run()", metadata={"tags": tags})
        text = f"{processor}, 2 cores, no GPU"
        cell.outputs = [nbformat.v4.new_output("stream", name="stdout", text=text)]
        return nbformat.v4.new_notebook(
            cells=[cell], metadata={"course": {"processor": "Ancient One"}}
        )

    here = Machine.here().processor
    assert list(comparing.differences(page("Ancient One"), page(here))) == []
    assert list(comparing.differences(page("Another Kind"), page(here))) != []


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
