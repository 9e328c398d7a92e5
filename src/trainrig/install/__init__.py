"""How a machine is set up to train: which versions, by which steps; nothing is run here.

choose      the machine and a table of versions → the versions that fit, and what stands between
torch_wheel which wheel of torch `make` installs here
script      those versions → a shell script with an undo section, and a Dockerfile
extension   one C++ extension really built with torch, and the cause where it is not
"""
