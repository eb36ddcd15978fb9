"""A plan without a kernel, on a group.

transfer.py   staged, moved, added up, given back, by the same launch protocol
memory.py     in which boxes ranks give and get tensors, where they lie, what it takes in all; needs no torch
"""
