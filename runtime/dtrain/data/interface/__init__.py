"""The parts of the class `Dataset`, whose methods are those of tf.data."""
