"""Training without servers: each chief and worker is a replica, and they reduce among themselves.

    strategy   one task, for all of its calls of `fit`
    hosting    the service of every task: the control plane, and the place where replicas meet
    opening    how a call of `fit` begins: the leader gathers the others, and they share memory
    training, replica, leader, orders   one call of `fit`

The steps are `roles.collective.driver`'s; the rules are in docs/design/collectives.md.
"""
