"""Training without servers: each chief and worker is a replica, and they reduce among themselves.

    strategy        one task, for all of its calls of `fit`
    membership      the others outside of steps: who is there, and who leads
    hosting         the service of every task: the control plane, and the place where replicas meet
    rendezvous      how a call of `fit` begins: the leader gathers the others, and they share memory
    hosts           the ways to replicas of other hosts
    members         how the members of a call of `fit` begin together, and how one comes later
    member_training puts one call of `fit` together:
    training, step_calls, orders            and its parts
    custom_loops    loops of one's own in the place of `fit`

The steps are `roles.collective.member_driver`'s; the rules are in docs/design/steps.md.
"""
