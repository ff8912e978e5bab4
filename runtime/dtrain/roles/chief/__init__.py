"""The leader: `machine` decides when a checkpoint is due, `driver` speaks with the servers; starts, orders,
saving, recovery.
"""
