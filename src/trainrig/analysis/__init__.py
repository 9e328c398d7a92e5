"""Records to what is true of them: findings, waterfalls, comparisons and verdicts.

    rows              claimed, predicted, measured and published records, side by side
    waterfall         from the claim down to what is reached
    bottlenecks       why a level lies below its ceiling
    judge             from records and findings to a verdict
    compare           two runs: better, worse or cannot tell

Nothing here opens a file, measures, or knows how it is shown.
"""
