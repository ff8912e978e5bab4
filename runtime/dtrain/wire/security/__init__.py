"""How two ends of a connection prove to each other that they belong to one run:
docs/design/protocol.md#authentication.
"""
