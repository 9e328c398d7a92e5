"""Our training loop, and its ranks."""
