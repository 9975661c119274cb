"""The colors of the course: GPU or rank i has the same one in every picture.

They are those of Okabe and Ito (2008), which people with the common forms of color blindness can
tell apart. Color is never the only sign: there is always a name beside it.

Text and lines are light or dark as the page is: a picture follows the page's own switch where there
is one (the site's `data-theme`, JupyterLab, VS Code), else what the reader's system asks for. It
has its own background, so its text keeps its contrast wherever it is pasted.
"""

import re

# blue, orange, bluish green, reddish purple, sky blue, vermilion, yellow
COLORS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442")
HOST = "#8A8F98"  # the CPU and its memory: gray

LIGHT = {
    "paper": "#FFFFFF",
    "band": "#F1F3F6",
    "line": "#6E7781",
    "edge": "#D0D7DE",
    "ink": "#1F2328",
    "muted": "#57606A",
}
DARK = {
    "paper": "#161B22",
    "band": "#21262D",
    "line": "#8B949E",
    "edge": "#3D444D",
    "ink": "#E6EDF3",
    "muted": "#A9B4C0",
}
CLASS = "multigpu-picture"

_LIGHT_PAGES = ("[data-theme=light]", "[data-jp-theme-light=true]", ".vscode-light")
_DARK_PAGES = ("[data-theme=dark]", "[data-jp-theme-light=false]", ".vscode-dark")

_NUMBERED = re.compile(r"\b(?:cuda:|gpu |rank )(\d+)", re.IGNORECASE)


def color(index: int) -> str:
    """The color of GPU or rank `index`, as `#RRGGBB`. After seven they start again."""
    return COLORS[index % len(COLORS)]


def color_of(name: str) -> str:
    """The color of a device or rank by its name: `cuda:2`, `GPU 2`, `rank 2`; all else is gray."""
    index = index_of(name)
    return HOST if index is None else color(index)


def index_of(name: str) -> int | None:
    """The number in `cuda:2`, `GPU 2 (busy)` or `rank 2`; None for the CPU and anything else."""
    match = _NUMBERED.search(name)
    return int(match[1]) if match else None


def ink_on(fill: str) -> str:
    """Black or white, whichever reads better on the color `fill` (contrast as WCAG defines it)."""
    return max("#000000", "#FFFFFF", key=lambda ink: contrast(ink, fill))


def tint(fill: str, strength: float) -> str:
    """The color `fill` thinned with white: `strength` 1 is the color itself, 0 white."""
    channels = (int(fill[i : i + 2], 16) for i in (1, 3, 5))
    return "#" + "".join(f"{round(255 - strength * (255 - c)):02X}" for c in channels)


def contrast(one: str, other: str) -> float:
    """The WCAG contrast ratio of two colors `#RRGGBB`: 1 (the same) to 21; text needs 4.5."""
    lighter, darker = sorted((_luminance(one), _luminance(other)), reverse=True)
    return (lighter + 0.05) / (darker + 0.05)


def _luminance(fill: str) -> float:
    channels = (int(fill[i : i + 2], 16) / 255 for i in (1, 3, 5))
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def style_sheet() -> str:
    """The CSS inside every picture. It applies only to elements inside the class `CLASS`."""
    light, dark = (
        "".join(f"--{name}:{value};" for name, value in colors.items()) for colors in (LIGHT, DARK)
    )
    on_light, on_dark = (
        ",".join(f"{page} .{CLASS}" for page in pages) for pages in (_LIGHT_PAGES, _DARK_PAGES)
    )
    return (
        f".{CLASS}{{{light}}}"
        f"@media(prefers-color-scheme:dark){{.{CLASS}{{{dark}}}}}"
        f"{on_light}{{{light}}}"
        f"{on_dark}{{{dark}}}"
        f".{CLASS} text{{font-family:system-ui,-apple-system,'Segoe UI',Roboto,'Noto Sans',"
        "'DejaVu Sans',sans-serif;font-variant-numeric:tabular-nums;fill:var(--ink)}"
        f".{CLASS} .muted{{fill:var(--muted)}}"
        f".{CLASS} .strong{{font-weight:600}}"
    )
