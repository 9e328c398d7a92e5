"""Records to something to look at: documents, charts, and their renderers.

Report is handed records and what `analysis` says of them; it reads no files and measures nothing.
"""

from pathlib import Path

DEMO = Path(__file__).parent / "demo.bundle"
"""Two RTX 3090 Ti as their owner published them; tools/make_demo.py makes it from the tables."""
