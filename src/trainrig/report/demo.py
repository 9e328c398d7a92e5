"""Where the demo's bundle lies: two RTX 4090s as others published them.

``python tools/make_demo.py`` makes it from the published tables.
"""

from pathlib import Path

BUNDLE = Path(__file__).parent / "demo.bundle"
