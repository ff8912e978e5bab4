"""Programs with a coordinator: it schedules functions, which workers run. See
`tf.distribute.coordinator.ClusterCoordinator` and docs/design/protocol.md#closures.
"""
