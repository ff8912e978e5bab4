"""APIs under the names that TensorFlow users look for: the Estimator, and `tf.keras.models`."""
