"""Calls that are like an earlier one but for where their tensors lie.

known_calls.py   calls found by a key
repeat.py        a launch made ready for every later call
call.py          such calls of compiled host functions
plain_body.py    host functions that need not run again: they allocate, compute with sizes and launch
front.py         those of them that are graphs, found and made again in C
making.py        how results are made
places.py        where the arguments of a launch lie in the tensors of a call
"""
