"""What moves: region algebra, plan nouns, the plan language, templates and the plan verifier.

    region      Box and its algebra                     order    happens-before, cycles named
    plan        Chunk, P2P, Collective, CommPlan        verify   ownership, races, coverage, sums: verify_plan
    reduction   Reduction, REDUCTIONS                   promise  is it a plan of this kind: verify_kind
    library     find_template(name)                     split    cutting transfers into parts
    build       build_plan(text, ...), load_plan        merge    several plans as one: merge_plans
    mesh        Mesh, parse_mesh                        links    Links, full_mesh, ring, two_level
    dump        CommPlan to text; describe for people   window   what a rank's kernel works on: kernel_window
    counts      CountArray: sizes known at a call       trials   counts to try a plan with: rooms_of, trials_of
    groups      over_axis: a plan in every group along an axis of a mesh
    collectives/  a collective as a plan: handed to a library, by a template, or made for a link table

A plan file is YAML. Operations are written from the view of one rank, and every rank has them:

    plan: all_gather_ring                               # the plan's name
    before: shard(rank)                                 # chunks a rank holds before the first operation
    after: whole                                        # and after the last one
    ops:
      - for: step in range(1, world)                    # as in a Python comprehension: more `for`s and `if`s may follow
        let: {next: (rank + 1) % world}                 # names for integers
        label: hop
        move: shard((rank + step) % world)              # or `pull` (from), `push` (to), `local` (into), `collective`
        from: next
        to: rank
        depends: [{on: hop, rank: next, step: step - 1, when: step > 1}]      # or [rank, index], or a label alone;
                                                                              # a `for` in it makes it several

Symbols are `rank world split dim extent`, the axes of a `mesh` (see `meshkey`), loop variables, `let` names, and sizes
named in `tensors: {x: [M, K]}` (`x: tensor`: sized as the tensor the plan is applied to).
`counts: {sent: [world, world]}` are sizes that are known when the plan is applied only: `sent[rank, peer]` is one, and
`sum(sent[rank, :peer])` is where the piece for `peer` begins behind those before it (see `countskey`).
Further keys: of an operation `when into do channel reduce backend`; of a plan `world` and `dim` (any other is refused),
`tensors`, `meta`, `parts: {x: [0, 1, 0, 1]}` for the part of a sum that each rank holds (its own otherwise),
`groups: {x: node}` where ranks hold different tensors under one name, and `ranks: {0: {before, after, ops}}` for what
single ranks have or do. A `move` becomes a pull or a push as the backend wants.
`reduce: sum`, or `{op: sum, accumulate: fp64}`, adds what arrives to what the rank has.
Chunk words stand in `chunkexpr`, arithmetic in `expr`.
"""
