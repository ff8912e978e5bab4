"""What users get wrong, and what they are told: command lines, and calls of the library."""

import contextlib
from pathlib import Path
from typing import Any

import numpy as np
from net.commands import dtrain

import dtrain as dt

FILES = {
    "train.py": "import dtrain\n",
    "broken.py": "import dtrain\nx = (\n",
    "script.sh": "",
    "right.yaml": "cluster: {chief: 1, worker: 1, ps: 1}\n",
    "two_mistakes.yaml": "cluster: {chief: 1, wroker: 1}\ntraining: {seed: x}\n",
    "not_yaml.yaml": "cluster: {chief: 1\n",
    "twice.yaml": "name: a\nname: b\n",
    "not_json.json": "{",
    "list.yaml": "- 1\n",
    "unused.yaml": "cluster: {chief: 1, worker: 1, ps: 1}\nhosts: [h1]\n",
    "damaged.safetensors": "abc",
}
WORDS = (
    *("lunch", "launch", "launch missing.py", "launch broken.py", "launch script.sh", "launch right.yaml"),
    *("launch two_mistakes.yaml train.py", "launch --wrokers 2 train.py", "launch --workers x train.py"),
    *(
        "launch --workers -1 train.py",
        "launch --set cluster.wroker=2 train.py",
        "launch --set nonsense train.py",
    ),
    *("launch --on moon train.py", "launch --updates sometimes train.py", "launch --strategy magic train.py"),
    *("launch --backup-workers 1 train.py", "launch --backup-workers 9 --updates sync train.py"),
    *(
        "launch --ps 0 train.py",
        "launch --workers 0 --set cluster.chief=0 train.py",
        "launch -- no-such-command",
    ),
    *(
        "launch --",
        "launch --timeout -1 train.py",
        "launch --timeout soon train.py",
        "launch --resume nothing train.py",
    ),
    *("launch --detach train.py", "launch --on ssh train.py"),
    *(
        "launch --on kubernetes train.py",
        "launch --name a/b train.py",
        "launch --strategy mirrored --workers 2 train.py",
    ),
    *(
        "check",
        "check missing.yaml",
        "check right.yaml",
        "check unused.yaml",
        "check two_mistakes.yaml",
        "check not_yaml.yaml",
    ),
    *("check twice.yaml", "check not_json.json", "check list.yaml", "check -", "check train.py"),
    *(
        "status nothing",
        "logs nothing",
        "stop nothing",
        "trace nothing",
        "rm nothing",
        "rm",
        "rm --keep -1",
        "runs",
        "runs x",
    ),
    *(
        "rm --older-than soon",
        "chaos nothing kill worker:0",
        "chaos nothing eat worker:0",
        "chaos nothing kill boss:0",
    ),
    *(
        "worker",
        "worker train.py",
        "ps --ps_hosts a:1 --task_index 0",
        "worker --ps_hosts a:1 train.py",
        "task train.py",
    ),
    *(
        "worker --ps_hosts a:1 --worker_hosts b:1 --task_index 5 train.py",
        "plan",
        "plan missing.py",
        "secret",
    ),
    *(
        "certificates right.yaml",
        "certificates missing.yaml --out out",
        "completion tcsh",
        "help lunch --all",
    ),
    *("evaluate", "export", "predict missing.safetensors", "data index", "data inspect --format x a"),
    *("fork-server", "--nonsense", "status --watch --nonsense"),
)
TF_CONFIGS = (
    *(
        "",
        "{",
        "[]",
        "{}",
        '{"cluster": {}}',
        '{"cluster": {"worker": ["a:1"]}}',
        '{"cluster": {"boss": ["a:1"]}}',
    ),
    '{"cluster": {"worker": ["a:1"]}, "task": {"type": "worker", "index": 1}}',
    '{"cluster": {"worker": ["a:1"]}, "task": {"type": "worker", "index": "x"}}',
    '{"cluster": {"worker": ["a:1", "a:1"]}, "task": {"type": "worker", "index": 0}}',
    '{"cluster": {"worker": ["a"]}, "task": {"type": "worker", "index": 0}}',
    '{"cluster": {"worker": ["a:1"]}, "tsak": {"type": "worker", "index": 0}}',
    '{"cluster": {"worker": "a:1"}, "task": {"type": "worker", "index": 0}}',
    '{"cluster": {"worker": ["a:99999"]}, "task": {"type": "worker", "index": 0}}',
)
X, Y = np.zeros((4, 3), "float32"), np.zeros((4, 1), "float32")
CALLS = (
    *(
        "dt.layers.Dense(0)",
        "dt.layers.Dense(-1)",
        "dt.layers.Dense('x')",
        "dt.layers.Dense(2, activation='rleu')",
    ),
    *(
        "dt.layers.Dense(2, kernel_initializer='x')",
        "dt.layers.Dropout(1.5)",
        "dt.layers.Conv2D(2, 3, padding='x')",
    ),
    *(
        "dt.layers.Dense(2, kernel_regularizer='l3')",
        "dt.layers.Embedding(0, 2)",
        "dt.layers.LSTM(2, units=3)",
    ),
    *(
        "dt.layers.Dens",
        "dt.nothing",
        "dt.layers.MultiHeadAttention",
        "dt.losses.get('mee')",
        "dt.metrics.get('acuracy')",
    ),
    *(
        "dt.optimizers.get('adamm')",
        "dt.optimizers.SGD(-1)",
        "dt.optimizers.SGD(momentum=2)",
        "dt.optimizers.Adam(beta_1=2)",
    ),
    *(
        "dt.activations.get('rleu')",
        "dt.initializers.get('x')",
        "dt.regularizers.get('x')",
        "dt.optimizers.SGD(clipnorm=-1)",
    ),
    *("dt.Sequential([1])", "made(loss='mee')", "made(optimizer='adamm')", "made(metrics=['x'])"),
    *("made(fit=False).fit(X, Y)", "made().fit(X)", "made().fit(X, Y[:3])"),
    *(
        "made().fit(X[:, :2], Y)",
        "made().fit(X, Y, batch_size=0)",
        "made().fit(X, Y, epochs=-1)",
        "made().fit(X, Y, 'x')",
    ),
    *(
        "made().fit(X, Y, validation_split=2)",
        "made().fit(X, Y, callbacks=['x'])",
        "made().fit(X, Y, class_weight=3)",
    ),
    *(
        "made().predict(X[:, :2])",
        "made().predict('x')",
        "made().evaluate(X[:0], Y[:0])",
        "made().set_weights([X])",
    ),
    *(
        "made().get_layer('x')",
        "made().save()",
        "made().load_weights('missing.safetensors')",
        "dt.load_model('missing')",
    ),
    *(
        "dt.load_model('damaged.safetensors')",
        "dt.MirroredStrategy(replicas=0)",
        "dt.MirroredStrategy(replica=2)",
    ),
    *("dt.ParameterServerStrategy(updates='sometimes')", "dt.ParameterServerStrategy(backup_workers=1)"),
    *("dt.MultiWorkerMirroredStrategy(transport='grpc')", "dt.data.Dataset.from_tensor_slices((X, Y[:3]))"),
    *(
        "dt.data.Dataset.range(3).batch(0)",
        "dt.data.Dataset.range(3).shuffle(0)",
        "dt.data.Dataset.range(3).map(3)",
    ),
    *(
        "next(iter(dt.data.Dataset.range(3).take('x')))",
        "dt.data.TFRecordDataset('missing').take(1).as_numpy()",
    ),
    *("next(iter(dt.data.TFRecordDataset('missing')))", "next(iter(dt.data.TextLineDataset('missing')))"),
    *("dt.callbacks.EarlyStopping(mode='x')", "dt.callbacks.ModelCheckpoint('x', save_freq=-1)"),
    *(
        "dt.callbacks.LearningRateScheduler(3)",
        "dt.callbacks.ReduceLROnPlateau(factor=2)",
        "dt.distribute.get_strategy().run(3)",
    ),
    *("dt.Input((2,)) + 1", "dt.layers.Add()([dt.Input((2,)), dt.Input((3,))])"),
    *(
        "dt.Model(1, 2)",
        "dt.from_torch(3)",
        "dt.from_function(3)",
        "dt.distribute.partitioners.FixedShardsPartitioner(0)",
    ),
    *(
        "dt.optimizers.schedules.ExponentialDecay(0.1, 0, 0.5)",
        "dt.optimizers.schedules.PiecewiseConstantDecay([1], [1])",
    ),
    *(
        "dt.losses.MeanSquaredError(reduction='x')",
        "dt.metrics.AUC(curve='x')",
        "dt.metrics.AUC(num_thresholds=1)",
    ),
    *("dt.metrics.MeanIoU()", "dt.utils.to_categorical([-1])", "dt.utils.to_categorical([5], num_classes=2)"),
)


def made(loss: str = "mse", optimizer: str = "sgd", metrics: Any = None, fit: bool = True) -> dt.Model:
    """Return a model of 3 inputs and one output."""
    model = dt.Sequential([dt.layers.Dense(1, input_shape=(3,))])
    if fit:
        model.compile(optimizer, loss, metrics=metrics)
    return model


def pages(folder: Path) -> dict[str, str]:
    """Return what each wrong command line and each wrong call is answered with."""
    folder = folder / "wrong"
    folder.mkdir()
    for name, text in FILES.items():
        (folder / name).write_text(text)
    commands = []
    for words in WORDS:
        code, out, err = dtrain(*words.split(), folder=folder)
        commands.append(f"$ dtrain {words}\n{out}{err}exit code {code}\n")
    for text in TF_CONFIGS:
        code, out, err = dtrain("check", "-", folder=folder, environment={"TF_CONFIG": text})
        commands.append(f"$ TF_CONFIG='{text}' dtrain check -\n{out}{err}exit code {code}\n")
    calls = [f">>> {call}\n{_raised(call, folder)}\n" for call in CALLS]
    return {
        "wrong/command_lines.txt": "\n".join(sorted(commands)),
        "wrong/calls.txt": "\n".join(sorted(calls)),
    }


def _raised(call: str, folder: Path) -> str:
    with contextlib.chdir(folder):
        try:
            eval(call, {"dt": dt, "np": np, "made": made, "X": X, "Y": Y})
        except Exception as error:
            return f"{type(error).__name__}: {error}".replace(str(folder), "FOLDER")
    return "is accepted"
