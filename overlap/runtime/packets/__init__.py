"""Collectives of small tensors in one launch each, by words that carry data and flag together.

low_latency.py   the collectives, as a serial call makes them
kernels.py       a Triton kernel for each form of exchange
lines.py         how a program sends and takes its lines of words, and clears them
boxes.py         what of a tensor each rank is sent
memory.py        slots in symmetric memory, and the words that a look gives up by
"""
