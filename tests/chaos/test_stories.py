"""What training promises, whatever happens to its tasks: stories on real processes, drawn from a seed.

Every example counts exactly once in every pass; where what comes too late is skipped it counts at most once,
and as many count as there were steps for. A deterministic training has the bits of one to which nothing
happened. No process is left of any. DTRAIN_CHAOS=N runs N seeds of each, DTRAIN_CHAOS=FROM:TO those. `python
tests/chaos/tell.py counting|bits|input|deaths SEED FOLDER` tells one again, `python tests/chaos/night.py` many of them.
"""

import pytest
from chaos.seeds import seeds
from chaos.telling import Telling
from row_by_row import by_night

pytestmark = [pytest.mark.timeout(600), pytest.mark.long("a whole training, with faults and what follows")]

USUAL_COUNTING, USUAL_BITS, USUAL_INPUT = (0, *by_night(3, 13)), (0,), (5,)
USUAL_DEATHS = (18, *by_night(*range(11)))
"""The stories that every run of the tests tells: one process that is killed, and resumed as an asynchronous cluster;
a server that is restored bit for bit; and a worker that joins replicas of which one is dead for good; and
replicas of one host whose leader is killed. By night also
backups of which a worker is killed, as clusters/test_cluster_deaths.py does; and an asynchronous leader that is killed
twice while its pushes have arrived at one of two servers, as in simulation/test_judge.py.
"""


@pytest.fixture(scope="module")
def told(request, tmp_path_factory):
    """What becomes of the story of each test that is to run."""
    telling = Telling(tmp_path_factory.mktemp("stories"))
    items = [item for item in request.session.items if item.module is request.module]
    chosen = [(item.originalname.split("_")[1], item.callspec.params["seed"]) for item in items]
    yield {each: telling.begin(*each) for each in chosen}
    telling.close()


def judge(code, out):
    assert code == 0, out


@pytest.mark.parametrize("seed", seeds(*USUAL_BITS))
def test_bits_are_those_of_a_quiet_run(told, seed):
    judge(*told["bits", seed].result())


@pytest.mark.parametrize("seed", seeds(*USUAL_COUNTING))
def test_counting_every_example_exactly_once(told, seed):
    judge(*told["counting", seed].result())


@pytest.mark.parametrize("seed", seeds(*USUAL_INPUT))
def test_input_of_pipelines_or_read_ahead_counts_every_example_exactly_once(told, seed):
    judge(*told["input", seed].result())


@pytest.mark.parametrize("seed", seeds(*USUAL_DEATHS))
def test_deaths_under_any_strategy_change_nothing_that_a_user_sees(told, seed):
    judge(*told["deaths", seed].result())
