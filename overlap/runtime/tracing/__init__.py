"""What `overlap trace` measures of a call on real or simulated ranks.

recording.py      the log that tiles of a traced kernel write, and events around copies
watching.py       a stream that sees when each chunk is there
clocks.py         how far the timers of ranks are apart, by `timer_kernels.py`
"""
