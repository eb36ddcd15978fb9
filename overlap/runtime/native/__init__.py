"""What a repeated call does, in C, since a host that has done other work waits for each line of memory that it touches.

build.py     builds the three files below as one module, with what Triton builds its own launchers with
graph.c      a recorded call: addresses given to its nodes, its order, its launch
calls.c      calls found by their operands and made again
module.c     the module, and how long the driver took
"""
