"""What this package adds to trainrig; pyproject.toml names it."""
