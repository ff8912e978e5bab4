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
        "apply_gradients, optimizer created outside": "the case does not say which gradients it applied",
    },
    "m1_mirrored_fit.json": {
        "class_and_sample_weight": (
            "TensorFlow refuses both together only because it does not know the batch size; dtrain knows it"
        ),
        "batchnorm_sync": (
            "synchronized=True needs sums over replicas within a step: parameter servers have none"
        ),
        "dataset_off": "AutoShardPolicy has no effect on parameter servers, as in TensorFlow",
        "metric made outside the scope": "a metric has no variables of a strategy",
        "fit on a distributed dataset without steps_per_epoch": "its length is known, so it is trained on",
        "fit on a Python generator of batches of 4": (
            "fit without steps_per_epoch needs to know the dataset's length: steps are counted"
        ),
    },
    "m3_central_storage.json": {
        "05_batchnorm": "NaN where a replica has no examples: a defect",
        "24_batchnorm": "NaN where a replica has no examples: a defect",
        "25_batchnorm": "NaN where a replica has no examples: a defect",
        "16_schedule": "a ValueError for a schedule: a defect",
        "36_schedule": "a ValueError for a schedule: a defect",
        "39_dataset_off": "a step that leaves a replica empty ends the fit: a defect",
        "loops with BatchNormalization": "NaN where a replica has no examples: a defect",
        "skip_gradients_aggregation": "replica 0's gradient alone is applied: a defect",
    },
    "m4_replica_context": {
        "gradient through": "there is no automatic differentiation, so none of a collective",
        "all_reduce, operations differ": "calls that differ between replicas raise in all of them",
        "run, order in which the replicas run": "replicas run at the same time",
        "reduce, numpy arrays, not tensors, SUM, None": "numpy arrays are dtrain's tensors",
        "reduce, numpy arrays, not tensors, MEAN, None": "numpy arrays are dtrain's tensors",
        "reduce, Python floats": "Python numbers are reduced as float32",
        "reduce, the Python number 0, MEAN": "the mean of equal numbers is that number, also of 0",
        "gather, nest [x, {k: x[:1]}]": "a nest is gathered; TensorFlow returns replica 0's values without a word",
    },
    "m6_multiworker_collectives.json": {
        "gather, -1": "negative axes count from the end, as under MirroredStrategy",
        "all_gather, -1": "negative axes count from the end, as under MirroredStrategy",
    },
    "m10_apply_gradients.json": {
        "optimizer built outside the scope": "TensorFlow's copies drift apart without an error: a defect",
    },
    "m7_communication_options.json": {
        "{'devices': ['GPU:0']}": "a device that is not there is refused at once, and not when it is used",
    },
    "m8_coordinator.json": {
        "schedule of a plain Python function": "plain functions are what is scheduled: there is no tf.function",
        "schedule of a ConcreteFunction": "there is no tf.function, so no concrete one",
        "a Python number for a function that has a default": (
            "TensorFlow refuses it because a tf.function binds numbers as constants; a function takes it"
        ),
    },
    "k_tensorboard.json": {
        "images": "dtrain writes scalars, histograms and text; it has no images",
        "k_tensorboard_v1": (
            "the form of TensorFlow 1: TensorBoard reads both, and dtrain writes that of tf.summary"
        ),
    },
}
