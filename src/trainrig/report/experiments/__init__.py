"""Experiments beside each other: of one run, and of two.

summaries   what a run keeps of each, checked before it is read
versus      one against another: the ratio, and what can be said of it; `stepwise` where it rests on
            steps, `forest` the ratios on one axis
side        everything of one run, arranged as plain data; of it `resources`, `foretold` and
            `published` are tables
across      the experiments of two runs, each against its own; `across_show` arranges them
text        any of it in a terminal and in markdown; for HTML, templates/experiments.html.j2
"""
