"""Opens runs: expect → run → judge.

session        qualify and bench, into one run folder
train          trainings as a run
plan           which cases a qualification runs
executor       runs them within their time and appends what came out
layout_search  plan: the best layouts of a model
history        the ledger of earlier runs
"""
