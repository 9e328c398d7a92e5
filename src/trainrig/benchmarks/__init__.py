"""What each benchmark is: its cases, counted work, metrics, limits and words.  No torch."""
