"""Golden cases that are left out, by file, and in it by what they have in common: the reason."""

LEFT_OUT: dict[str, dict[str, str]] = {
    "e_placement.json": {
        "ps_strategy": "placements are chosen by name, not handed in as functions",
        "ps_ops": "operations of a graph: only variables are placed",
        "returned_none": "there is no server to place on; without one there is no plan",
    },
    "f_optimizers.json": {
        "tf.compat.v1.train.RMSPropOptimizer": (
            "starts the mean square at 1, tf.keras.optimizers and .legacy start it at 0"
        ),
        "tf.compat.v1.train.ProximalGradientDescentOptimizer": (
            "neither tf.keras.optimizers nor .legacy has this rule"
        ),
        "tf.compat.v1.train.ProximalAdagradOptimizer": (
            "neither tf.keras.optimizers nor .legacy has this rule"
        ),
    },
    "h2_strategy.json": {
        "strategy.reduce": "collectives between replicas: parameter servers have none",
        "strategy.gather": "collectives between replicas: parameter servers have none",
        "replica_context.": "collectives between replicas: parameter servers have none",
        "mirrored variable": (
            "variables that a program assigns in replicas: a model's are the optimizer's "
            "and the layers' alone"
        ),
        "on-read variable": (
            "variables that a program assigns in replicas: a model's are the optimizer's "
            "and the layers' alone"
        ),
        "apply_gradients, optimizer created outside": "the case does not say which gradients it applied",
    },
    "m1_mirrored_fit.json": {
        "class_and_sample_weight": (
            "TensorFlow refuses both together only because it does not know the batch size; dtrain knows it"
        ),
        "batchnorm_sync": (
            "synchronized=True needs sums over replicas within a step: parameter servers have none"
        ),
        "activity_regularizer": "no layer has an activity_regularizer",
        "dataset_off": "AutoShardPolicy.OFF: a batch is cut as under AUTO and DATA",
    },
    "k_tensorboard.json": {
        "images": "dtrain writes scalars, histograms and text; it has no images",
        "k_tensorboard_v1": (
            "the form of TensorFlow 1: TensorBoard reads both, and dtrain writes that of tf.summary"
        ),
    },
}
