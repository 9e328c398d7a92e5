"""Whole training in one process or many: a model of `models` on the tokens of `data`.

    experiment   what is trained: one frozen description, checked at the edge
    engine       the loop: data, forward, backward, clip, optimizer
    schedule     the learning rate of a step
    precision    weights to compute with, weights to update
    parts        where a step's time goes, each part timed by itself
    feed         samples of a step as tensors on the device
    checkpoint   save and resume, bit for bit on the CPU
    serve        the worker's side: a case or a whole training in a process of its own

and the same spread over ranks, by our engine or another project's:

    files        an experiment file → experiments
    backends     whose engine trains: what it lacks, how it is started, what came of it
    interpreters which Python it runs in, and what is installed there
    launch       start the ranks, watch them, leave none behind
    rank         one rank of our engine: joins, trains, tells
    sharding     the weights on the ranks: DDP, ZeRO 1 to 3
    look         the layout as found, from live objects; `layouts` makes words of it
    telling      events from a rank to its parent
    drivers      programs for other projects' engines, in their own Pythons

Whoever starts ranks imports no torch: `experiment`, `schedule`, `files`, `backends`,
`interpreters`, `launch`, `layouts`, `parity` and `telling`.
"""
