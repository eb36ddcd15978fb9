"""Import from other compilers: what they decided about placements and loops, as a `CommPlan` of P2P.

placement      Shard, Replicate, Partial; parse_placement("shard(0)"), alpa_placements("S0R", mesh)
partition_ir   PartitionIR, Reshard, lower_partition_ir: placements before and after (DTensor, Alpa, Domino)
loop_model     LoopNest, Loop, Buffer with parallelize, shift, shard, replicate (Mercury)
loop_ir        lower_loop_ir, stored_boxes: the transfers of a loop nest, and what its buffers take
axis_steps     path=: a change of placements as collectives, left to a library or made for links
moves          transfers written down one after the other, with what each comes after
traffic        axis_elements: what a plan moves over each axis of a mesh
"""
