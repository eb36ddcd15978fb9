"""The launch protocol's own Triton kernels.

entry.py     the entry kernel, the wait kernel and the moving kernel
stage.py     what the entry kernel stages: few dimensions, wide words
reduce.py    the sum kernel
credits.py   peers told that what they sent has been read: behind everything, or by the last program of a sum
"""
