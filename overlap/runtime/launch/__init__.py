"""A launch: the protocol's steps, made ready once and enqueued through a runtime.

launch.py     carries out the steps of `overlap.schedule.steps`, with a kernel or without
acts.py       steps as functions that enqueue them, and how one call goes through them
prepared.py   each step bound to an instance's memory
opening.py    the entry kernel's launches, with everything bound but addresses
givens.py     copies straight out of the caller's tensor
in_place.py   tiles that read and write the caller's tensors
beside.py     sums beside the kernel: whether, and what the kernel leaves free for them
elsewhere.py  sums that are stored where they go
finish.py     tiles that add up what comes of the rank's own part
residents.py  launches whose programs wait for one another, and so must all be resident
variant.py    what Triton compiles a kernel anew for, of the arguments of a launch
"""
