"""What both steppers share: a recording made once per state of the code, and the box on the page.

The page gets a record as tables, which read without JavaScript, and as JSON, from which our script
builds the stepper.
"""

import json
import subprocess
import sys
from hashlib import sha256
from pathlib import Path

from sphinx.errors import ExtensionError

from course.element import html, raw, text
from course.execution import state_of_the_code


def recorded(env, name, sources):
    """What the script ``sources[0]`` prints, kept while neither code nor sources change."""
    folder = Path(env.srcdir) / "_recorded"
    key = sha256(state_of_the_code().encode())
    for source in sources:
        env.note_dependency(str(source))
        key.update(source.read_bytes())
    kept = folder / f"{name}-{key.hexdigest()[:16]}.json"
    if not kept.exists():
        command = [sys.executable, str(sources[0])]
        ran = subprocess.run(command, capture_output=True, text=True, timeout=120)
        if ran.returncode:
            raise ExtensionError(f"{sources[0].name} failed:\n{ran.stderr}")
        folder.mkdir(exist_ok=True)
        for old in folder.glob(f"{name}-*.json"):
            old.unlink(missing_ok=True)
        kept.write_text(ran.stdout, encoding="utf-8")
    return json.loads(kept.read_text(encoding="utf-8"))


def box(record, summary, tables):
    """A stepper: its title, the stage for the script, the tables, and the record."""
    # "</" would end the script element early.
    data = json.dumps(record, separators=(",", ":")).replace("</", "<\\/")
    numbers = html(
        "details", html("summary", text(summary)), *tables, classes=["course-numbers"], open=""
    )
    return html(
        "div",
        html("p", text(record["title"]), classes=["course-label"]),
        html("div", classes=["course-stage"]),
        numbers,
        raw(f'<script type="application/json">{data}</script>'),
        classes=["course-stepper"],
    )
