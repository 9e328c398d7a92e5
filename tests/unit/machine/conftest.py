"""What tests of this room share."""

from nvml_driver import driver

__all__ = ["driver"]
