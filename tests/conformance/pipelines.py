"""The pipelines of the golden files: lists of steps, as datasets."""

import numpy as np

from dtrain import data
from dtrain.data import Dataset
from dtrain.data.experimental import AutoShardPolicy

READERS = {"text": data.TextLineDataset, "tfrecord": data.TFRecordDataset}


def written(folder, kind, contents):
    """Write one file for each inner list, a record for each number, as decimal text; return the paths."""
    folder.mkdir(exist_ok=True)
    paths = [folder / f"{number:03}.{kind}" for number in range(len(contents))]
    for path, numbers in zip(paths, contents, strict=True):
        if kind == "text":
            path.write_text("".join(f"{number}\n" for number in numbers))
            continue
        with data.TFRecordWriter(str(path)) as writer:
            for number in numbers:
                writer.write(str(number).encode())
    return [str(path) for path in paths]


def of_files(folder, kind, reader, contents):
    """The dataset of the numbers in files that `written` writes."""
    names, read = written(folder, kind, contents), READERS[kind]
    if reader == "direct":
        lines = read(names)
    elif reader == "flat_map":
        lines = Dataset.from_tensor_slices(names).flat_map(read)
    elif reader == "interleave":
        lines = Dataset.from_tensor_slices(names).interleave(read, cycle_length=2, block_length=1)
    elif reader == "list_files_interleave":
        listed = data.list_files(f"{folder}/*.{kind}", shuffle=False)
        lines = listed.interleave(read, cycle_length=2, block_length=1)
    return lines.map(lambda line: np.int64(int(line)))


STEPS = {
    "map_x10": lambda ds: ds.map(lambda x: x * 10),
    "filter_even": lambda ds: ds.filter(lambda x: x % 2 == 0),
    "filter_batch_first_not_multiple": lambda ds, m: ds.filter(lambda x: x[0] % m != 0),
    "shard_hint": lambda ds: ds.shard(data.experimental.SHARD_HINT, data.experimental.SHARD_HINT),
    "concat_range": lambda ds, start, stop: ds.concatenate(Dataset.range(start, stop)),
}


def pipeline(steps, folder, policy=None):
    """The dataset of a list of steps; files are written into `folder`."""
    [(source, *arguments), *rest] = steps
    if source == "files":
        dataset = of_files(folder, *arguments)
    elif source == "tensor_slices":
        dataset = Dataset.from_tensor_slices(np.arange(*arguments))
    else:
        dataset = Dataset.range(*arguments)
    for name, *arguments in rest:
        step = STEPS.get(name)
        dataset = step(dataset, *arguments) if step else getattr(dataset, name)(*arguments)
    if policy is None:
        return dataset
    options = data.Options()
    options.experimental_distribute.auto_shard_policy = AutoShardPolicy[policy]
    return dataset.with_options(options)


def plain(batches):
    """Arrays as lists."""
    return [np.asarray(batch).tolist() for batch in batches]
