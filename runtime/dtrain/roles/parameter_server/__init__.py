"""A parameter server: `machine` decides, `driver` runs it; beside them what a server holds and how it treats
messages.
"""
