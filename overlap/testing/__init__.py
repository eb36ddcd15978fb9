"""For tests of other people's kernels: the pytest fixture `overlap_sim` (plugin.py, found by pytest itself)."""
