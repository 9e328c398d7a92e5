"""What each benchmark is: its cases and counts, how it is planned, shown and judged.  No torch."""
