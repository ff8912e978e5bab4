"""Write tests/golden/n_preprocessing.json and .npz: what Keras's layers that prepare data return.

Run it where requirements-tf.txt is installed, from the root of the repository:
`python tests/peers/preprocessing_golden.py`. Random layers get ranges of a single value, so that nothing is random.
"""

import itertools
import json
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

GOLDEN = Path("tests/golden")
L = tf.keras.layers
WORDS = [
    "earth",
    "wind",
    "and",
    "fire",
    "",
    "ü",
    "Wind",
    "a word of seventeen",
    "x" * 40,
    "y" * 64,
    "z" * 200,
]
TEXTS = [
    "The quick, brown FOX.",
    "  jumps\tover the  lazy dog!! ",
    "",
    "ÜBER straße don't re-enter\u00a0now",
    "the the the fox",
    "a-b c_d (e) [f]",
]
NUMBERS = np.random.default_rng(7).normal(3, 5, (90, 2)).astype(np.float32)
INTEGERS = [[3, -1, 0], [12345678901, 7, 3]]


def plain(value):
    array = value.numpy() if hasattr(value, "numpy") else np.asarray(value)
    if array.dtype == object or array.dtype.kind == "S":
        return {"dtype": "string", "value": decoded(array.tolist())}
    return {"dtype": str(array.dtype), "value": array.tolist()}


def decoded(value):
    if isinstance(value, list):
        return [decoded(each) for each in value]
    return value.decode() if isinstance(value, bytes) else value


def case(cls, args, x, adapt=None, batches=None, **call):
    """Describe one call of a layer, and its result or the class of its error."""
    found = {"cls": cls, "args": args, "x": [plain(each) for each in x] if isinstance(x, tuple) else plain(x)}
    found["call"] = {key: plain(each) if isinstance(each, np.ndarray) else each for key, each in call.items()}
    try:
        layer = getattr(L, cls)(**args)
        if adapt is not None:
            found["adapt"] = plain(adapt)
            layer.adapt(np.asarray(adapt, object if isinstance(adapt[0], str) else None), batch_size=batches)
            found["batch_size"] = batches
        given = [tf.constant(each) for each in x] if isinstance(x, tuple) else tf.constant(x)
        found["y"] = plain(layer(given, **call))
        if hasattr(layer, "get_vocabulary"):
            found["vocabulary"] = [
                decoded(each) if isinstance(each, bytes) else plain(each)["value"]
                for each in layer.get_vocabulary()
            ]
        if hasattr(layer, "bin_boundaries"):
            found["bin_boundaries"] = [float(each) for each in layer.bin_boundaries]
    except Exception as error:  # whatever Keras raises is what is recorded
        found["error"] = {"class": type(error).__name__, "message": str(error).splitlines()[0][:200]}
    return found


def categories():
    for mode, x in itertools.product(
        ("one_hot", "multi_hot", "count"), ([3, 2, 0, 1], [[0, 1], [0, 0], [1, 2]], 2, [[1], [3]])
    ):
        yield case("CategoryEncoding", {"num_tokens": 4, "output_mode": mode}, np.array(x))
    yield case(
        "CategoryEncoding",
        {"num_tokens": 4, "output_mode": "count"},
        np.array([[0, 1], [0, 0], [1, 2], [3, 1]]),
        count_weights=np.array([[0.1, 0.2], [0.1, 0.1], [0.2, 0.3], [0.4, 0.2]]),
    )
    yield case("CategoryEncoding", {"num_tokens": 4}, np.array([[4]]))
    yield case("CategoryEncoding", {"num_tokens": 4}, np.array([[-1]]))
    yield case("CategoryEncoding", {"num_tokens": 0}, np.array([[1]]))
    yield case("CategoryEncoding", {"num_tokens": 4, "output_mode": "int"}, np.array([[1]]))
    for mode in ("int", "one_hot", "multi_hot", "count"):
        yield case(
            "Discretization",
            {"bin_boundaries": [0.0, 1.0, 2.0], "output_mode": mode},
            np.array([[-1.5, 1.0, 3.4, 0.5], [0.0, 3.0, 1.3, 0.0]], np.float32),
        )
    yield case("Discretization", {"bin_boundaries": [0.0, 0.1]}, np.array([0, 1, -1]))
    yield case("Discretization", {"bin_boundaries": [0.1, 1.5]}, np.array([0.1, 1.5, float("inf")]))
    yield case(
        "Discretization",
        {"num_bins": 4, "epsilon": 0.01},
        np.array([[-1.5, 1.0, 3.4, 0.5]], np.float32),
        adapt=np.array([[-1.5, 1.0, 3.4, 0.5], [0.0, 3.0, 1.3, 0.0]], np.float32),
    )
    for bins, epsilon, batch in itertools.product((2, 5, 10), (0.01, 0.1, 0.3), (None, 7, 90)):
        yield case(
            "Discretization",
            {"num_bins": bins, "epsilon": epsilon},
            NUMBERS[:4],
            adapt=NUMBERS,
            batches=batch,
        )
    yield case("Discretization", {"num_bins": 3, "bin_boundaries": [1.0]}, np.array([1.0]))


def hashes():
    for args in (
        {"num_bins": 3},
        {"num_bins": 2**40},
        {"num_bins": 1},
        {"num_bins": 1, "mask_value": ""},
        {"num_bins": 3, "mask_value": ""},
        {"num_bins": 3, "salt": 1337},
        {"num_bins": 2**40, "salt": [133, 137]},
        {"num_bins": 9, "mask_value": "wind", "salt": -5},
        {"num_bins": 0},
        {"num_bins": 3, "salt": "a"},
    ):
        yield case("Hashing", args, np.array(WORDS, object))
    for args in (
        {"num_bins": 7},
        {"num_bins": 2**40},
        {"num_bins": 7, "mask_value": 3},
        {"num_bins": 7, "salt": 3},
    ):
        yield case("Hashing", args, np.array(INTEGERS))
    for mode in ("one_hot", "multi_hot", "count"):
        yield case(
            "Hashing",
            {"num_bins": 4, "output_mode": mode},
            np.array([["a", "b", "a"], ["c", "c", "d"]], object),
        )
    yield case("Hashing", {"num_bins": 4}, np.array([1.5]))
    letters, codes = np.array(["A", "B", "A", "B", "A"], object), np.array([101, 101, 101, 102, -102])
    for mode in ("int", "one_hot"):
        yield case("HashedCrossing", {"num_bins": 5, "output_mode": mode}, (letters, codes))
        yield case("HashedCrossing", {"num_bins": 5, "output_mode": mode}, (letters[:, None], codes[:, None]))
        yield case("HashedCrossing", {"num_bins": 5, "output_mode": mode}, (letters[0], codes[0]))
    yield case("HashedCrossing", {"num_bins": 2**40}, (codes, letters, np.array(WORDS[6:], object)))
    yield case("HashedCrossing", {"num_bins": 5, "output_mode": "count"}, (letters, codes))
    yield case("HashedCrossing", {"num_bins": 5}, (letters,))
    yield case("HashedCrossing", {"num_bins": 5}, (letters[None], codes[None]))


def lookups():
    words = np.array([["a", "c", "x"], ["b", "yy", ""]], object)
    for mode, mask in itertools.product(("int", "multi_hot", "count"), (None, "")):
        yield case(
            "StringLookup", {"vocabulary": ["a", "b", "c"], "output_mode": mode, "mask_token": mask}, words
        )
    yield case("StringLookup", {"vocabulary": ["a", "b", "c"], "num_oov_indices": 5}, np.array(WORDS, object))
    yield case(
        "StringLookup",
        {"vocabulary": ["a", "b", "c"], "output_mode": "one_hot"},
        np.array(["a", "x"], object),
    )
    yield case(
        "StringLookup",
        {"vocabulary": ["a", "b", "c"], "output_mode": "tf_idf", "idf_weights": [0.25, 0.75, 0.6]},
        words,
    )
    yield case(
        "StringLookup",
        {
            "vocabulary": ["[UNK]", "a", "b", "c"],
            "output_mode": "tf_idf",
            "idf_weights": [0.9, 0.25, 0.75, 0.6],
        },
        words,
    )
    yield case(
        "StringLookup",
        {"vocabulary": ["a"], "max_tokens": 6, "pad_to_max_tokens": True, "output_mode": "count"},
        words,
    )
    yield case(
        "StringLookup",
        {"output_mode": "tf_idf"},
        words,
        adapt=[["a", "b", "a"], ["c", "b", "c"], ["b", "d", "b"]],
    )
    yield case(
        "StringLookup",
        {"output_mode": "tf_idf", "max_tokens": 4},
        words,
        adapt=[["a", "b", "a"], ["c", "b", "c"], ["b", "d", "b"]],
    )
    yield case("StringLookup", {"vocabulary": ["a", "a"]}, words)
    yield case("StringLookup", {"vocabulary": ["a", "b"], "max_tokens": 2}, words)
    yield case("StringLookup", {"vocabulary": ["a"], "num_oov_indices": 0}, words)
    yield case("StringLookup", {"vocabulary": ["a"], "invert": True}, np.array([0, 1, 5]))
    yield case(
        "IntegerLookup",
        {"vocabulary": [12, 36, 1138, 42], "num_oov_indices": 3},
        np.array([[12, 1138, 42], [42, 1000, -36]]),
    )
    yield case(
        "IntegerLookup",
        {"vocabulary": [12, 36], "output_mode": "tf_idf", "idf_weights": [0.25, 0.75]},
        np.array([[12, 36, 12], [7, 1, 36]]),
    )
    yield case("IntegerLookup", {"mask_token": 0}, np.array([[1, 0]]), adapt=[[5, 5, 1], [0, 2, 1]])


def texts():
    x = np.array(TEXTS, object)
    for standardize, split, ngrams in itertools.product(
        ("lower_and_strip_punctuation", "lower", "strip_punctuation", None),
        ("whitespace", "character"),
        (None, 2),
    ):
        args = {"standardize": standardize, "split": split, "ngrams": ngrams}
        yield case("TextVectorization", args, x, adapt=TEXTS)
    yield case(
        "TextVectorization",
        {"split": None},
        np.array([["a b", "c", ""], ["zz", "A b!", "c"]], object),
        adapt=[["a b", "c"], ["C", "d"]],
    )
    yield case("TextVectorization", {"ngrams": (1, 3), "output_mode": "int"}, x, adapt=TEXTS)
    for length in (2, 20):
        yield case(
            "TextVectorization", {"max_tokens": 9, "output_sequence_length": length}, x[:, None], adapt=TEXTS
        )
    for mode in ("multi_hot", "count", "tf_idf"):
        for more in ({}, {"max_tokens": 5}, {"max_tokens": 40, "pad_to_max_tokens": True}, {"ngrams": 2}):
            yield case("TextVectorization", {"output_mode": mode, **more}, x, adapt=TEXTS)
    yield case(
        "TextVectorization",
        {"vocabulary": ["earth", "wind", "and", "fire"], "output_sequence_length": 4},
        np.array([["earth fire"], ["wind wind sun"]], object),
    )
    yield case("TextVectorization", {"vocabulary": ["earth", "wind"]}, "wind and earth")
    yield case(
        "TextVectorization", {"vocabulary": ["a", "b"], "output_mode": "tf_idf", "idf_weights": [0.5, 2.0]}, x
    )
    for args in (
        {"ragged": True, "output_mode": "count"},
        {"standardize": "upper"},
        {"split": "tabs"},
        {"output_mode": "one_hot"},
        {"output_mode": "count", "output_sequence_length": 3},
        {"vocabulary": ["a", "a"]},
    ):
        yield case("TextVectorization", args, x)


def images(arrays):
    """Yield cases whose arrays go to the .npz."""
    rng = np.random.default_rng(3)
    batch, single = (
        rng.uniform(0, 255, (2, 7, 10, 3)).astype(np.float32),
        rng.uniform(0, 255, (6, 5, 1)).astype(np.float32),
    )
    sizes = ((3, 4), (7, 10), (13, 17), (14, 5), (1, 1), (9, 9))
    methods = ("bilinear", "nearest", "bicubic", "area", "lanczos3", "lanczos5", "gaussian", "mitchellcubic")
    calls = [
        *(
            ("Resizing", {"height": h, "width": w, "interpolation": m, "crop_to_aspect_ratio": c})
            for (h, w), m, c in itertools.product(sizes, methods, (False, True))
            if not c or m in methods[:2]
        ),
        *(("CenterCrop", {"height": h, "width": w}) for h, w in (*sizes, (6, 5), (5, 4))),
        *(("RandomCrop", {"height": h, "width": w}) for h, w in ((9, 9), (7, 10), (6, 5))),
    ]
    modes = list(itertools.product(("reflect", "wrap", "constant", "nearest"), ("bilinear", "nearest")))
    for fill, method in modes:
        more = {"fill_mode": fill, "interpolation": method, "fill_value": 9.0}
        for down, right in ((0.3, -0.2), (-0.75, 1.0), (0.05, 0.0)):
            calls.append(
                ("RandomTranslation", {"height_factor": [down, down], "width_factor": [right, right], **more})
            )
        for turn in (0.1, -0.25, 0.5, 0.03):
            calls.append(("RandomRotation", {"factor": [turn, turn], **more}))
        for high, wide in ((0.4, None), (-0.5, None), (0.3, -0.3), (-0.9, 0.7)):
            args = {"height_factor": [high, high], "width_factor": None if wide is None else [wide, wide]}
            calls.append(("RandomZoom", {**args, **more}))
    calls += [
        ("RandomBrightness", {"factor": [f, f], "value_range": r})
        for f in (0.2, -0.6)
        for r in ([0, 255], [0, 100])
    ]
    for number, ((cls, args), (name, x)) in enumerate(
        itertools.product(calls, (("batch", batch), ("single", single)))
    ):
        training = cls != "RandomCrop"
        try:
            arrays[f"{number}/y"] = getattr(L, cls)(**args)(
                x, **({"training": training} if cls.startswith("Random") else {})
            ).numpy()
        except Exception as error:  # whatever Keras raises is what is recorded
            print(cls, args, error)
            continue
        yield {"cls": cls, "args": args, "x": name, "y": f"{number}/y", "training": training}
    for factor in (0.3, 1.0, 1.7):
        arrays[f"contrast/{factor}"] = tf.clip_by_value(
            tf.image.adjust_contrast(batch, factor), 0, 255
        ).numpy()
    arrays["batch"], arrays["single"] = batch, single


def main():
    arrays = {}
    meta = {
        "tensorflow": tf.__version__,
        "keras": keras.__version__,
        "numpy": np.__version__,
        "apis": "tf.keras.layers.*",
    }
    cases = [*categories(), *hashes(), *lookups(), *texts()]
    text = json.dumps({"meta": meta, "cases": cases, "images": list(images(arrays))}, ensure_ascii=False)
    (GOLDEN / "n_preprocessing.json").write_text(
        text.replace('}, {"cls"', '},\n{"cls"').replace('[{"cls"', '[\n{"cls"') + "\n"
    )
    np.savez_compressed(GOLDEN / "n_preprocessing.npz", **arrays)
    print(len(cases), [each["error"] | {"args": each["args"]} for each in cases if "error" in each])


if __name__ == "__main__":
    main()
