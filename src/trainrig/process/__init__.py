"""Processes: the only room that starts or kills one.

    supervisor   a child in a session of its own; the ranks of a training from start to end
    lost_ranks   which rank was lost, where and since when; the attempts of one training
    worker       a child that stays and answers requests, one at a time
    programs     a program that ends by itself, run for its output; a command that goes on alone
    child        what a child does: die with its parent, say why it failed, leave at once
    events       what a child tells its parent: lines of JSON, and a heartbeat in shared memory
    pool         one function over many items, in as many processes as there are processors
    python_env   which Python a child runs in, and what is installed there

`child` and `events` are pure standard library and `errors`: a child may run in a foreign Python,
with another version of torch and without pydantic.
"""
