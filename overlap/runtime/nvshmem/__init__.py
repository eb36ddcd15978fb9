"""What ranks on other nodes need: NVSHMEM in kernels and on lanes (its memory is providers/nvshmem.py).

device_code.py   the library's device code as kernels are linked with it
modules.py       making a loaded module known to the library
far_moves.py     operations that it carries, in the table of moves and as a kernel of their own
"""
