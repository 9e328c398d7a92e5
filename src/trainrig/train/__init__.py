"""Whole training in one process: a model of `models` on the tokens of `data`.

    experiment   what is trained: one frozen description, checked at the edge
    engine       the loop: data, forward, backward, clip, optimizer
    schedule     the learning rate of a step
    precision    weights to compute with, weights to update
    parts        where a step's time goes, each part timed by itself
    feed         samples of a step as tensors on the device
    checkpoint   save and resume, bit for bit on the CPU
    serve        the worker's side: a case or a whole training in a process of its own

Only `experiment` and `schedule` can be imported without torch.
"""
