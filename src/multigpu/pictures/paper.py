"""The paper the pictures are drawn on: light or dark, as the page around them is.

A picture follows the page's own switch where there is one (the site's `data-theme`, JupyterLab,
VS Code), else what the reader's system asks for. It brings its own background, so its text keeps
its contrast wherever it is pasted.
"""

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


def style_sheet() -> str:
    """The CSS inside every picture. It only speaks of elements inside the class `CLASS`."""
    light, dark = _variables(LIGHT), _variables(DARK)
    return (
        f".{CLASS}{{{light}}}"
        f"@media(prefers-color-scheme:dark){{.{CLASS}{{{dark}}}}}"
        f"{_on(_LIGHT_PAGES)}{{{light}}}"
        f"{_on(_DARK_PAGES)}{{{dark}}}"
        f".{CLASS} text{{font-family:system-ui,-apple-system,'Segoe UI',Roboto,'Noto Sans',"
        "'DejaVu Sans',sans-serif;font-variant-numeric:tabular-nums;fill:var(--ink)}"
        f".{CLASS} .muted{{fill:var(--muted)}}"
        f".{CLASS} .strong{{font-weight:600}}"
    )


def _variables(colours: dict[str, str]) -> str:
    return "".join(f"--{name}:{value};" for name, value in colours.items())


def _on(pages: tuple[str, ...]) -> str:
    return ",".join(f"{page} .{CLASS}" for page in pages)
