"""Expect → run → judge: what qualify and bench do."""
