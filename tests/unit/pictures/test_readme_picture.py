"""The README's picture is what a run gives today."""

import importlib.util
from pathlib import Path

DOCS = Path(__file__).resolve().parents[3] / "docs"


def test_the_stored_picture_is_the_recorded_run():
    spec = importlib.util.spec_from_file_location("draw_readme", DOCS / "draw_readme.py")
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    stored = (DOCS / "_static" / "readme.svg").read_text(encoding="utf-8")
    assert stored == script.draw().svg() + "\n", "draw it again: python docs/draw_readme.py"
