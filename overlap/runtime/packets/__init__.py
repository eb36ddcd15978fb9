"""Collectives of small and medium tensors in one launch each: by words that carry data and flag together, or by blocks.

low_latency.py    the collectives, as a serial call makes them, and what carries them
transport.py      what both have in common: memory that grows, first calls, launches made ready
limits.py         from and below which bytes each is used
boxes.py          what of a tensor each rank is sent
memory.py         slots in symmetric memory, and the words that a look gives up by

words.py          words: data and flag together
kernels.py        a Triton kernel for each form of exchange
lines.py          how a program sends and takes its lines of words, and clears them

blocks.py         blocks: dense data, and a flag behind
block_kernels.py  a Triton kernel for each form of exchange
block_parts.py    how a program sends and takes its blocks
"""
