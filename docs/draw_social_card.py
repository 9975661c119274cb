"""Draw the picture that programs show beside a link to the site: 1200 × 630 pixels.

    python docs/draw_social_card.py      writes docs/_static/social_card.png

It shows the beginning of the README's picture, a metered step on four virtual GPUs
(``draw_readme.py`` draws that one; run it first when it has changed). Needs Chromium, and
Playwright from the ``test`` extra.
"""

import shutil
from pathlib import Path

from playwright.sync_api import sync_playwright

STATIC = Path(__file__).resolve().parent / "_static"
TARGET = STATIC / "social_card.png"
WIDTH, HEIGHT = 1200, 630
PAGE = """
<style>
  body {{ display: grid; grid-template: 100% / 1fr 35rem; gap: 3rem; align-items: center;
    box-sizing: border-box; width: {width}px; height: {height}px; margin: 0; overflow: hidden;
    padding: 0 3rem 0 3.5rem; background: #fff; color: #1f2328;
    font-family: system-ui, "Noto Sans", "DejaVu Sans", sans-serif; }}
  h1 {{ margin: 1.8rem 0 1.4rem; font-size: 4.4rem; line-height: 1.08; letter-spacing: -0.03em; }}
  p {{ margin: 0; font-size: 1.7rem; line-height: 1.45; color: #57606a; }}
  .name {{ display: flex; gap: 0.9rem; align-items: center; color: #1f2328; font-weight: 700;
    font-size: 2rem; }}
  .name svg {{ width: 3rem; height: 3rem; }}
  /* The picture is taller than the card: its beginning is shown, large enough to be read. */
  .step {{ height: 100%; box-sizing: border-box; padding-top: 3rem; min-height: 0; }}
  .step svg {{ display: block; width: 100%; height: auto; }}
  .edge {{ position: absolute; inset: auto 0 0; height: 14px; background: #005a8f; }}
</style>
<div><p class="name">{icon} multigpu</p><h1>From one GPU to many</h1>
<p>Write DataParallel and DDP yourself. A laptop without a GPU is enough.</p></div>
<div class="step">{step}</div><div class="edge"></div>
"""


def drawn() -> str:
    """The card as an HTML page; the pictures are written into it."""
    icon, step = (STATIC.joinpath(f"{name}.svg").read_text("utf-8") for name in ("icon", "readme"))
    return PAGE.format(icon=icon, step=step, width=WIDTH, height=HEIGHT)


def draw() -> None:
    """Let Chromium draw the page."""
    path = shutil.which("chromium") or shutil.which("google-chrome")
    with sync_playwright() as running:
        browser = running.chromium.launch(executable_path=path, args=["--no-sandbox"])
        tab = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT})
        tab.set_content(drawn())
        tab.screenshot(path=TARGET)
        browser.close()


if __name__ == "__main__":
    draw()
    print(f"wrote {TARGET}")
