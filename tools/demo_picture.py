"""Take docs/demo.png: the first screen of the demo's report, as the README shows it.

    python tools/demo_picture.py

Needs Debian's chromium and fonts-inter (a stand-in for the system fonts of people's
browsers; without it the picture comes out in DejaVu), and playwright from the test extra.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from trainrig.cli.report import read_view
from trainrig.report import DEMO as BUNDLE
from trainrig.report.run_report import render_html

PICTURE = Path(__file__).resolve().parent.parent / "docs" / "demo.png"
WIDTH = 1440
MARGIN = 9


def main() -> int:
    """Write the picture; its size is printed."""
    from playwright.sync_api import sync_playwright

    chromium = shutil.which("chromium")
    if chromium is None:
        print("needs chromium: apt-get install chromium", file=sys.stderr)
        return 3
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=chromium, args=["--no-sandbox", "--disable-gpu"]
        )
        page = browser.new_page(viewport={"width": WIDTH, "height": 900}, color_scheme="light")
        page.set_content(render_html([read_view(BUNDLE)]))
        page.add_style_tag(content="body, svg { font-family: Inter, system-ui, sans-serif }")
        box = page.locator("section.card").first.bounding_box()
        clip = {"x": 0, "y": 0, "width": WIDTH, "height": box["y"] + box["height"] + MARGIN}
        page.screenshot(path=PICTURE, full_page=True, clip=clip)
        browser.close()
    print(f"{PICTURE}: {PICTURE.stat().st_size / 1000:.0f} kB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
