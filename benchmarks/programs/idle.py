"""A cluster that waits: synchronous training whose chief has no second batch, so all other tasks wait for
it.
"""

import threading

import numpy as np

import dtrain as dt

ONE = np.ones((1, 1), np.float32)


def batches(context):
    def generate():
        yield ONE, ONE
        print("first step done", flush=True)
        if context.input_pipeline_id == 0:
            threading.Event().wait()
        while True:
            yield ONE, ONE

    return dt.data.Dataset.from_generator(generate)


with dt.get_strategy().scope():
    model = dt.Sequential([dt.layers.Dense(1, input_shape=(1,))])
    model.compile(optimizer="sgd", loss="mse")
model.fit(batches, steps_per_epoch=1_000_000, validation_data=(ONE, ONE), verbose=0)
