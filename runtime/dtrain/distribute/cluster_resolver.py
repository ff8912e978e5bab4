"""`dt.distribute.cluster_resolver`: which task this is; names of `tf.distribute.cluster_resolver`."""

from dtrain.process.tensorflow import TFConfigClusterResolver

__all__ = ["TFConfigClusterResolver"]
