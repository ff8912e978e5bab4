"""The transport between hosts: both ends of a gRPC stream of raw chunks. Alone here grpc is imported."""
