"""Steps of replicas that reduce among themselves, without servers. Rules alone: no socket, thread, clock or
chance. `between_hosts` has the sums over several hosts.
"""
