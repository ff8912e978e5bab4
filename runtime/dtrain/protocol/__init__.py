"""The rules of training together, as pure state machines: no sockets, no threads, no clock, no chance.

Time comes in as `now` (seconds of any monotonic clock). Each file opens with its law; the numbers are those
of the rules in the README's page on the protocol.
"""
