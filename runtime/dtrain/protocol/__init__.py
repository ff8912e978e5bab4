"""The rules of training together, as pure state machines: no sockets, no threads, no clock, no chance.

Time comes in as `now` (seconds of any monotonic clock). docs/design/protocol.md has the rules by name; each
file opens with the part of them that it keeps.
"""
