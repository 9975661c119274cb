"""What explorers and steppers are made of: choices, keys, shades, recordings and tables."""

import json
import subprocess
import sys
from hashlib import sha256
from pathlib import Path

from docutils import nodes
from sphinx.errors import ExtensionError

from course import records
from course.element import html
from multigpu.pictures import palette


def choice(name, label, options, chosen, *, view=False):
    """A group of buttons. ``options`` are values, or pairs of a value and what the button says.

    With ``view`` it changes only how a case is shown, so it is not part of the case's key.
    """
    pairs = [option if isinstance(option, tuple) else (option, option) for option in options]
    made = {"name": name, "label": label, "chosen": str(chosen)}
    made["options"] = [[str(value), str(words)] for value, words in pairs]
    return {**made, "view": True} if view else made


def key(*values):
    """The case of these values, given in the order of the choices."""
    return " ".join(map(str, values))


def shades(base, strengths):
    """Fill and ink of the first part of a bar, the second, ..."""
    fills = [palette.tint(base, strength) for strength in strengths]
    return [[fill, palette.ink_on(fill)] for fill in fills]


# --- recordings ----------------------------------------------------------------------------------


def recorded(env, name):
    """What the script ``NAME_recording.py`` prints, kept in ``docs/records/``.

    It runs again when it has changed, and in ``make record`` with the page that shows it.
    """
    root, script = Path(env.srcdir).parent, script_of(name)
    digest = sha256(script.read_bytes()).hexdigest()[:16]
    record, shown = (root / place / f"{name}.json" for place in (records.PLACE, records.SHOWN))
    for path in (record, script):
        env.note_dependency(str(path))
    for path in (record, shown):
        if path.exists() and not env.config.course_record:
            kept = json.loads(path.read_text(encoding="utf-8"))
            if kept["key"] == digest:
                return kept["recording"]
    made = json.loads(printed_by(script))
    target = record if env.config.course_record else shown
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(json.dumps({"key": digest, "recording": made}), encoding="utf-8")
    return made


def script_of(name):
    return Path(__file__).with_name(f"{name}_recording.py")


def printed_by(script):
    """Run a script in a process of its own."""
    ran = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=120)
    if ran.returncode:
        raise ExtensionError(f"{script.name} failed:\n{ran.stderr}")
    return ran.stdout


def sent_so_far(frames):
    """The bytes that the busiest rank has sent after each frame; in a ring all are alike."""
    sent, sums = {}, []
    for frame in frames:
        for copy in frame["copies"]:
            sent[copy["source"]] = sent.get(copy["source"], 0) + copy["bytes"]
        sums.append(max(sent.values(), default=0))
    return sums


# --- tables --------------------------------------------------------------------------------------


def table(caption, columns, rows, *, foot=(), style):
    """The cells of ``rows`` are elements; the first of a row is the words of its head."""
    head = html("tr", *(html("th", name, scope="col") for name in columns))
    body, last = (
        [html("tr", html("th", str(name), scope="row"), *cells) for name, *cells in part]
        for part in (rows, foot)
    )
    parts = [html("caption", caption), html("thead", head), html("tbody", *body)]
    return html("table", *parts, *([html("tfoot", *last)] if last else []), classes=[style])


def grid(caption, columns, rows):
    """A table of numbers; the first cell of a row is its head."""
    in_cells = ((first, *(html("td", str(e)) for e in rest)) for first, *rest in rows)
    made = table(caption, columns, in_cells, style="course-grid")
    return html("div", made, classes=["course-scroll"], tabindex="0")


def steps_table(case, caption, columns, rows, *, foot=()):
    """A case of a stepper. After its label a row has a cell for each column: see :func:`told`."""
    made = table(caption, columns, rows, foot=foot, style="course-copies")
    return html("div", made, classes=["course-scroll"], data_case=case, tabindex="0")


def told(column, says="", sentences=()):
    """A cell with what is said in a step, then a list of sentences."""
    cell = html("td", *([html("p", says)] if says else []), data_side=column)
    items = [nodes.list_item("", nodes.paragraph("", each)) for each in sentences]
    if items:
        cell += nodes.bullet_list("", *items)
    return cell
