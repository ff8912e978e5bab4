"""Sums over several hosts: who sends which elements to whom, in which order, and what is added where.

Each host has the gradients of some parts of a step. Each gets the mean over all parts, whole, and updates its
own copy of the variables, so that a host that is lost takes no variable with it. The ring moves the fewest
bytes; the ordered chain adds up in the order of the parts, so that the bits are those of one process.
"""
