"""Loops of one's own: functions that a program runs in every replica of a strategy, and their values.

Compare `tf.distribute.Strategy.run`. The replicas of a process run at the same time, each in a thread; those
of several processes are reached through `peers`.
"""
