"""Numbers by running: one timing loop, worker processes, and the benchmark families.

The parent process imports no torch: it starts workers (`worker`), hands them
cases, sleeps, and turns their replies into records (`points`).  A worker
(`serve`) imports torch once, prepares a case, checks the answer and times it
with the one loop (`loop`) under the device's clock (`clock`).
"""
