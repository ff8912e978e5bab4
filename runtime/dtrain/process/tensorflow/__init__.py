"""A cluster in TensorFlow's words: TF_CONFIG, the classic flags of a task, and cluster resolvers."""
