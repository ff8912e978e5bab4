"""`training.overlap`: the layers of a step overlap where the link is slow, and numbers stay the same."""

from types import SimpleNamespace

import numpy as np
import pytest
from in_memory import InMemoryCluster
from roles.test_worker_driver import Clock, Line, driver, values

import dtrain as dt
from dtrain.config import LinkFault, SimulateSection
from dtrain.roles.worker import arriving_values
from dtrain.strategies.parameter_server.overlap import SLOW_LINK_MBIT_S, Overlap
from dtrain_cli.spec.file import read_spec

GIGABIT = SLOW_LINK_MBIT_S / 3


def exchange(mbit_s, able=True):
    """A replica's driver with a link of this speed; `measured` counts how often it was asked."""
    made = SimpleNamespace(can_overlap=able, measured=0)

    def measure_link():
        made.measured += 1
        return mbit_s

    made.measure_link = measure_link
    return made


@pytest.mark.parametrize(
    ("choice", "mbit_s", "able", "overlaps", "measured"),
    [
        ("auto", GIGABIT, True, True, 1),
        ("auto", 10 * GIGABIT, True, False, 1),
        ("auto", GIGABIT, False, False, 0),
        ("on", 10 * GIGABIT, True, True, 0),
        ("on", GIGABIT, False, False, 0),
        ("off", GIGABIT, True, False, 0),
    ],
)
def test_what_is_chosen_or_measured_decides(choice, mbit_s, able, overlaps, measured):
    made = exchange(mbit_s, able)
    assert Overlap(choice).decide(made) is overlaps
    assert made.measured == measured


def test_a_process_measures_its_link_once():
    made, overlap = exchange(GIGABIT), Overlap("auto")
    assert [overlap.decide(made), overlap.decide(made)] == [True, True]
    assert made.measured == 1


@pytest.mark.parametrize("seconds", [0.001, 2.0])
def test_the_speed_of_a_link_is_that_of_the_values_of_a_server(seconds, monkeypatch):
    monkeypatch.setattr(arriving_values, "LATE_BYTES", 1)
    clock = Clock()

    class Slow(Line):
        def receive(self, *arguments, **more):
            clock.sleep(seconds)
            return super().receive(*arguments, **more)

    replica = driver(Slow(values(), values()), clock=clock)
    replica.start()
    assert replica.can_overlap
    nbytes = sum(block.nbytes for block in replica._weights.blocks[0])
    assert replica.measure_link() == pytest.approx(nbytes * 8e-6 / seconds)
    assert not replica.overtaken


def test_small_values_have_nothing_to_overlap():
    replica = driver(Line(values()))
    replica.start()
    assert not replica.can_overlap


def trained(folder, overlap, bandwidth_mbit_s):
    """Weights after two steps of one replica on one server, and whether its layers overlapped."""
    fault = LinkFault(between=("chief:0", "ps:0"), bandwidth_mbit_s=bandwidth_mbit_s)
    simulate = SimulateSection(network=(fault,))
    cluster = InMemoryCluster(folder, 1, simulate=simulate, overlap=overlap)
    overlapped = []

    class Watched(dt.Sequential):
        def train_step(self, step):
            overlapped.append(step._overlap is not None)
            return super().train_step(step)

    def built():
        model = Watched([dt.layers.Dense(1100, input_shape=(1100,)), dt.layers.Dense(1)])
        model.compile("sgd", "mse")
        return model

    def body(model):
        x = np.linspace(-1, 1, 4400, dtype=np.float32).reshape(4, 1100)
        model.fit(x, x[:, :1], batch_size=2, verbose=0)
        return model.get_weights()

    [weights] = cluster.run(built, body)
    return weights, set(overlapped)


def test_a_slow_link_is_found_and_changes_no_number(tmp_path):
    """4.8 MB at 200 Mbit/s take 0.2 s."""
    found, overlapped = trained(tmp_path / "auto", "auto", 200)
    expected, none = trained(tmp_path / "off", "off", None)
    assert (overlapped, none) == ({True}, {False})
    for array, other in zip(found, expected, strict=True):
        assert np.array_equal(array, other)


@pytest.mark.parametrize("choice", ["auto", "on", "off"])
def test_the_words_of_a_spec_are_words(choice, tmp_path):
    path = tmp_path / "spec.yaml"
    path.write_text(f"cluster: {{chief: 1, worker: 1, ps: 1}}\ntraining: {{overlap: {choice}}}\n")
    assert read_spec(path).training.overlap == choice
    path.write_text("cluster: {chief: 1, worker: 1, ps: 1}\n")
    assert read_spec(path, (f"training.overlap={choice}",)).training.overlap == choice
