"""What the copy buttons copy: what a reader types, without prompts, outputs and marks."""

from collections.abc import Callable
from typing import Any

import pytest

LISTEN = """() => {
  document.addEventListener("copy", () => { window.copied = String(getSelection()); }, true);
  document.addEventListener("focusin", (event) => {
    if (event.target.matches("textarea")) window.copied = event.target.value;
  });
}"""


@pytest.fixture
def copy(open_page: Callable) -> Callable[[str, str], str]:
    """``copy(page, block)``: what is copied by the button of the first block like that."""

    def copied(page: str, block: str) -> str:
        tab = open_page(page)
        tab.evaluate(LISTEN)
        box = tab.locator(block).first
        box.hover()
        box.locator("button.copybtn").click()
        return tab.evaluate("window.copied").replace("\r", "").strip("\n")

    return copied


def test_a_command_is_copied_without_its_prompt_and_its_output(copy: Callable) -> None:
    page = "lessons/when_it_hangs.html"
    lines = copy(page, ".highlight-console:has-text('torchfrtrace')").splitlines()
    assert len(lines) == 4
    assert lines[0].startswith("export TORCH_FR_BUFFER_SIZE")
    assert not [line for line in lines if line.startswith(("$", " "))]


def test_a_command_of_several_lines_is_copied_whole(copy: Callable) -> None:
    words = copy("lessons/many_machines.html", ".highlight-console:has-text('two_hosts.sh')")
    first, *others = words.splitlines()
    assert first.startswith("docs/scripts/two_hosts.sh")
    assert first.endswith("\\")
    assert others[-1].endswith("--epochs 3")


def test_a_cell_is_copied_without_what_it_printed(copy: Callable) -> None:
    cell = ".course-cell:has(.course-stdout):has(.course-code)"
    words = copy("lessons/data_parallel.html", cell)
    assert words.startswith("from multigpu.data import digits")
    assert words.endswith('{difference:.1e}")')


def test_outputs_and_differences_have_no_button(open_page: Callable) -> None:
    notebook: Any = open_page("_notebooks/multi_GPU.html")
    assert notebook.locator(".nbinput .copybtn").count() > 0
    assert notebook.locator(".nboutput .copybtn").count() == 0
    lesson: Any = open_page("lessons/distributed_data_parallel.html")
    assert lesson.locator(".highlight-diff").count() > 0
    assert lesson.locator(".highlight-diff .copybtn").count() == 0
