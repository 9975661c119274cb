"""What a cell gave, as the page shows it: printed text, values, pictures, errors."""

import base64
import re

from course.element import html, raw, text

ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")


def shown(cell_outputs):
    """The outputs in order, in one box; neighboring prints are one block."""
    box = html("div", classes=["course-output"])
    for output in joined(cell_outputs):
        box += one(output)
    return box if box.children else []


def joined(cell_outputs):
    """Streams of the same name that follow each other become one output."""
    outputs = []
    for output in cell_outputs:
        before = outputs[-1] if outputs else None
        if before and output.output_type == "stream" and before.get("name") == output.name:
            outputs[-1] = {**before, "text": before["text"] + output.text}
        else:
            outputs.append(dict(output))
    return outputs


def one(output):
    kind = output["output_type"]
    if kind == "stream":
        return printed(output["text"], "course-" + output["name"])
    if kind == "error":
        return printed(f"{output['ename']}: {output['evalue']}", "course-error")
    return displayed(output["data"])


def printed(words, style):
    words = ANSI.sub("", words).rstrip("\n")
    # A long line scrolls inside the block, so the keyboard must be able to reach it.
    return html("pre", text(words), classes=[style], tabindex="0") if words else []


def displayed(data):
    """The richest form that needs neither script nor request."""
    if "image/svg+xml" in data:
        return picture(data["image/svg+xml"])
    if "text/html" in data:
        # A wide table scrolls, too.
        return html("div", raw(data["text/html"]), classes=["course-html"], tabindex="0")
    if "image/png" in data:
        encoded = base64.b64encode(base64.b64decode(data["image/png"])).decode()
        words = ANSI.sub("", data.get("text/plain", "figure"))
        return html("img", src=f"data:image/png;base64,{encoded}", alt=words)
    return printed(data.get("text/plain", ""), "course-result")


def picture(svg):
    start = svg.index("<svg")  # an XML declaration has no place inside a page
    return html("div", raw(svg[start:]), classes=["course-picture"])
