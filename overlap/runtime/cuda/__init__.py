"""The protocol on GPUs of one host, and the driver calls below it.

runtime.py        `CudaRuntime`: the protocol, with side streams and peer copies by the copy engine
driver.py         calls of the CUDA driver with arguments that are converted once
lanes.py          side streams of a launch, and the events between them
call_graph.py     a repeated call as one CUDA graph whose kernels are given the addresses of each call
bound_launch.py   a compiled kernel's launch with its arguments bound
launchers.py      Triton's launchers, below the work that every launch repeats
scratch.py        memory for kernels that make tensor descriptors on the device
compiled.py       kernels compiled and loaded ahead of their launch, and what they take of a multiprocessor
occupancy.py      whether one more warp fits beside a grid that fills the device
static_memory.py  kernels whose assembly declares shared memory of its own
"""
