"""Streams of the bytes of arrays between tasks of several hosts, over TCP, after the handshake of all
transports.

gRPC carries messages; a sum of large arrays over it takes three times TCP's processor time
(docs/design/wire.md#streams). A task that wants to be sent streams has a `Listener`; another one opens a
stream to it by `open_stream`. A stream goes one way.
"""
