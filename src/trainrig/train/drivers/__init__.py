"""Programs that drive another project's engine, each a script for that project's own environment.

They import the standard library, torch, their project and `trainrig.data`, and nothing else.
"""
