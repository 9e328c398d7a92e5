"""`trainrig attach`: follow what was started with --detach; it lives beside `trainrig jobs`."""

from trainrig.cli.jobs import attach as command

__all__ = ["command"]
