"""What the ranks of a group do through the process group, and whom of it a rank reaches.

meeting.py       small values exchanged through the group's store, with a deadline
reach.py         the ranks of one's own node, which pointers reach, and the far ones
library.py       collectives of a plan, each carried out by torch.distributed as a whole
collectives.py   collectives of sharded tensors in even and uneven pieces, for serial calls
"""
