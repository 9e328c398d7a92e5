"""Definitions of the benchmarks: cases, counts, planning, display and judgement.  No torch."""
