"""train/native."""
