"""Golden cases that are left out, by file, and in it by what they have in common: the reason."""

LEFT_OUT: dict[str, dict[str, str]] = {
    "f_optimizers.json": {
        "tf.compat.v1.train.RMSPropOptimizer": "starts the mean square at 1, tf.keras.optimizers and .legacy start it at 0",
        "tf.compat.v1.train.ProximalGradientDescentOptimizer": "neither tf.keras.optimizers nor .legacy has this rule",
        "tf.compat.v1.train.ProximalAdagradOptimizer": "neither tf.keras.optimizers nor .legacy has this rule",
    },
}
