"""The control plane of a run: members and their leases, ranks, parts of batches, decisions, the orderly end.

One task of the run hosts it, `ClusterSpec.control_host`: the first parameter server, so that a step needs no
message more than those that carry gradients, or the leader where there are no servers. `machine` is pure and
knows neither arrays nor connections. The part of a task that holds arrays asks it by a call in the same
process, or by messages from another one.
"""
