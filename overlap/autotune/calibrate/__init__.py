"""How fast this machine copies, computes and starts things, as a machine file for `predict`, `explain` and schedules.

samples      what was timed, and lines fitted to it          no torch
machinefile  the numbers as the text of a machine file       no torch
clock        one call timed on all ranks at once
probes       the calls that are timed
run          all probes in order, with progress
"""
