"""Predictions held against published figures: maintainers' commands, not in the wheel."""
