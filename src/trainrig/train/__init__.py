"""Whole training in one process or many: a model of `models` on the tokens of `data`.

    config           what is trained: one frozen experiment, checked at the edge
    experiment_parts the small types that it is made of
    config_file      an experiment file → experiments
    engines          whose training loop runs: what it lacks, how it is started, what came of it
    layout_check     the observed layout beside the requested one
    parity           the losses and gradients that two trainings must share
    native           our loop and its ranks: DDP, ZeRO 1 to 3, precision, checkpoints, step timer
    drivers          programs for other frameworks, which run in Pythons of their own

The parent imports no torch: `config`, `config_file`, `engines`, `layout_check` and `parity`.
"""
