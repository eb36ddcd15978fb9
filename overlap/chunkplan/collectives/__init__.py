"""A collective as a plan, three ways (the paper's Listing 3, ``path=``).

step = CollectiveStep("all_gather", TensorSpec("a", (1000, 64)), world=8, dim=0)
lower_collective(step, path="direct")                       one `Collective`, handed to a library
lower_collective(step, path="template", links=ring(8))      a shipped template, as P2P
lower_collective(step, path="synth", links=ring(8))         P2P made for the link table

step        CollectiveStep: kind, tensor, ranks         network   distances and ports of a link table
placed      a plan of a group among all ranks           matching  chunks to free links over time
direct      path="direct"                               synth     path="synth"
templated   path="template"                             timing    when operations end over links
lower       lower_collective, verify_collective
"""
