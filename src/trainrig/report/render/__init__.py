"""report/render."""
