"""Parts of the tests that follow TensorFlow's trajectories, golden file j."""

import numpy as np
from conformance.golden import load_json

import dtrain as dt

GOLDEN = load_json("j_end_to_end.json")


def optimizer_of(case):
    name, arguments = case["optimizer"]
    return getattr(dt.optimizers, name.rsplit(".", 1)[-1].removesuffix("Optimizer"))(**arguments)


def close(found, expected, case):
    """The trajectories' tolerance."""
    atol = 2e-5 if "Adam" in case["optimizer"][0] else 1e-5
    np.testing.assert_allclose(found, np.array(expected, np.float32), rtol=1e-4, atol=atol)


def noting_losses(train_step, losses):
    """The same step; the logs of a fit are means over its batches so far."""

    def noting(step):
        logs = train_step(step)
        losses.append(logs["loss"])
        return logs

    return noting


def shares(case, examples):
    """Weights that make the mean over a block, averaged over the replicas, the sum over all divided by the
    global batch size.
    """
    return np.full(examples, examples * case["replicas"] / case["global_batch"], np.float32)
