"""Faults planted below each check, to see that it finds them, and healthy twins that it must not.

registry          what a fault is, and what came of planting each
run               every family of faults in a process of its own
page              the table
process_faults    real processes that die, hang or answer nonsense
burn_faults       burn's checks: bits flipped below them, sensors, errors that rise
doctor_faults     the doctor's checks, on whole machines as data: healthy, faulty, repaired
links_faults      what ranks exchange
judge_faults      the verdict's rules, over workers that answer as those of a faulty device
train_faults      trainings that compute something else, and what a run says of its ranks
import_faults     what other tools print of a faulty machine
store_faults      bundles, run folders, disks that are full
"""
