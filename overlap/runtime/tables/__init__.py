"""The tables that kernels are given beside the user's arguments.

moves.py      chunks that some programs of a kernel move, and how many programs those are
inline_words.py  results in low-latency words: slots in symmetric memory, and who sends and adds what
slots.py      places in other ranks' memory where tiles are stored
ranges.py     parts of a loop inside a tile
sums.py       pieces of a sum: the fewest loops and the widest words
tile_sums.py  what other ranks send of a piece that tiles add, and where its result goes
hosteval.py   a kernel's tile map evaluated on the host
"""
