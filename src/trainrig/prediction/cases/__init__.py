"""Tables of cases: one question to `predict` in each row, and what was measured of it, if anything.

columns   which columns there are, and the rows of a CSV or JSON Lines file as values
complete  the question that a row asks, and which defaults stand for what it leaves blank
answers   the prediction of a case, how far off it is from what was measured, and its JSON

A column is an option of `trainrig predict` under its own name, read as the option is read: a row
asks exactly what the same flags ask.  docs/cases.md lists the columns.
"""
