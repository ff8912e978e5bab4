"""How messages travel. Alone here grpc is imported; above this room nobody knows what carries a message.

`channel` is the interface of both ends, `memory` its twin without sockets for tests, `client` and `service` the gRPC ends,
`frames` the bytes, `handshake` who is let in.
"""
