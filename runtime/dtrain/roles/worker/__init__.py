"""A replica, in a worker or in the chief: `machine` decides what it tells the servers, `driver` runs it in
the training thread.
"""
