"""report/charts."""
