"""The pages are valid HTML, as html-validate sees it."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.mark.slow
def test_every_page_is_valid_html(
    site: Path, pages: list[Path], node_module: Callable[[str], Path], tmp_path: Path
) -> None:
    # "standard" is what the HTML standard asks for, without house rules of style.
    config = {"root": True, "extends": ["html-validate:standard"]}
    (tmp_path / "rules.json").write_text(json.dumps(config))
    command = ["node", str(node_module("html-validate") / "bin" / "html-validate.mjs")]
    ran = subprocess.run(
        [*command, "--config", str(tmp_path / "rules.json"), "--formatter", "text",
         *(str(site / page) for page in pages)],
        capture_output=True, text=True,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stdout + ran.stderr
