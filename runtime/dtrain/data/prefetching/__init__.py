"""Reading ahead: batches are read, parsed and mapped by threads before they are asked for.

It is the only room of `data` with threads and locks. None is started before the first batch is asked for, so
that processes can be forked before.
"""
