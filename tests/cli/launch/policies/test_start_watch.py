from dtrain.cluster import TaskId
from dtrain_cli.launch.policies.patience import StartWatch

MISSING = {TaskId.parse("worker:2"): "ps:0", TaskId.parse("ps:0"): None}


def test_it_speaks_from_the_second_second_on_and_ever_less_often():
    watch = StartWatch(timeout_s=60.0, started_s=100.0)
    words = {second: watch.word(MISSING, 100.0 + second) for second in range(60)}
    spoken = {second: word for second, word in words.items() if word}
    assert list(spoken) == [2, 4, 8, 16, 32]
    assert spoken[2] == "waiting 2 s for worker:2 (waits for ps:0), ps:0"


def test_it_gives_up_at_the_timeout_and_names_a_few():
    watch = StartWatch(timeout_s=60.0, started_s=0.0)
    many = {TaskId.parse(f"worker:{index}"): None for index in range(8)}
    assert watch.failure(many, 59.9) is None
    text = watch.failure(many, 60.0)
    assert text is not None
    assert "60 s" in text
    assert "and 3 more" in text
    assert watch.failure({}, 61.0) is None
