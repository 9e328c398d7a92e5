"""What a machine does now: its devices, its processes, the trainings and burns that run on it.

live        one look: sensors, processes, runs that are being written, jobs
processes   who computes, by the kernel's counts
prometheus  that for Prometheus, over HTTP on loopback
lines       that in words
screen      that in a terminal, again and again (textual)
"""
