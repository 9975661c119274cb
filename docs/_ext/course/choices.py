"""What an explorer's record is made of: choices, keys of cases, and plain tables of numbers."""

from course.element import html, text


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


def grid(caption, columns, rows):
    """A table of numbers; the first cell of a row is its head."""
    head = html("tr", *(html("th", text(name), scope="col") for name in columns))
    body = html("tbody")
    for first, *others in rows:
        cells = (html("td", text(str(each))) for each in others)
        body += html("tr", html("th", text(str(first)), scope="row"), *cells)
    made = html(
        "table", html("caption", text(caption)), html("thead", head), body, classes=["course-grid"]
    )
    return html("div", made, classes=["course-scroll"], tabindex="0")


def gigabytes(count):
    """Bytes as the papers write them, in powers of ten: ``16.6 GB``."""
    return f"{count / 1e9:,.1f} GB" if count >= 1e8 else f"{count / 1e6:,.1f} MB"
