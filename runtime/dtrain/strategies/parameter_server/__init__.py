"""Training with parameter servers: what one chief, worker or evaluator does of it. See
`tf.distribute.ParameterServerStrategy`.

leader:   initialise the servers, start the checkpoint thread; then as a replica
replica:  heartbeat at ps:0, connect to every server, pull; push and receive until the last step
leader:   final checkpoint; farewell when the program ends
"""
