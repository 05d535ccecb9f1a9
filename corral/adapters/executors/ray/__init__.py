"""Workers on a Ray cluster: one placement group per launch, one detached actor per rank.

`executor` is what the control plane uses. It talks to a process of its own, `driver`, since Ray takes over
the process that connects to it. `driver`, `operations`, `states` and `ledger` run in that process,
`rank_actor` on the nodes, and `guard` beside the worker; those need Ray and the standard library only.
"""
