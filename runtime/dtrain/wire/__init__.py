"""The transports of messages. Only this room imports grpc; no code above it knows what carries a message.

`channel` is the interface of both ends, and has their twin without sockets for tests; `peer` is a server as
one thread sees it. gRPC and `one_host` are the two transports; `streams` are of bytes, for
replicas that reduce among themselves. `frames` holds the bytes, and `handshake` decides which tasks are
let in.
"""

import os

# Before grpc is imported: its newer engine takes a message through a pool of threads on the way to the one
# that waits for it, which costs 10 to 20% of a round trip of any size. A gRPC that does not know these names
# passes them over.
os.environ.setdefault("GRPC_EXPERIMENTS", "-event_engine_client,-event_engine_listener")
