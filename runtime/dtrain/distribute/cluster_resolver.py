"""`dt.distribute.cluster_resolver`: which task this is; names of `tf.distribute.cluster_resolver`."""

from dtrain.process.tensorflow.cluster_resolver import TFConfigClusterResolver

__all__ = ["TFConfigClusterResolver"]
