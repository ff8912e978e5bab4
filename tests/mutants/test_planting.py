"""Planting: the one place that is meant, or a clear word that there is none."""

import pytest
from mutants.drawing import draw
from mutants.planting import Change, DoesNotFitError, place_of, plant

SOURCE = '''
class Tank:
    def fill(self, litres, *, most=9):
        """Fill it."""
        if litres > most:  # it would run over
            return False
        self.notify(litres, most=most)
        self.level += litres
        return self.level > 0 and litres > 0

    def empty(self):
        self.level = 0
        self.level = 0
'''


@pytest.mark.parametrize(
    ("change", "gone", "there"),
    [
        (Change("Tank.fill", "litres > most", "litres >= most"), "if litres > most", "if litres >= most"),
        (Change("Tank.fill", "if litres > most:\n    return False"), "return False", "pass"),
        (
            Change("Tank.fill", "self.level += litres\nreturn self.level > 0 and litres > 0", "return True"),
            "+=",
            "return True",
        ),
        (Change("Tank.fill", "most=most"), "most=most", "self.notify(litres)"),
        (Change("Tank.fill", "most=most", "most + 1"), "most=most)", "most=most + 1"),
        (Change("Tank.fill", "*", "return None"), "notify", 'Fill it."""\n        return None'),
        (Change("Tank.empty", "self.level = 0", every=True), "self.level = 0", "pass\n        pass"),
    ],
)
def test_a_piece_is_replaced(change, gone, there):
    planted = plant(SOURCE, change)
    assert there in planted
    assert gone not in planted


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (Change("Tank.drain", "litres"), "there is no Tank.drain"),
        (Change("Tank.fill", "litres < most", "True"), "does not contain: litres < most"),
        (Change("Tank.empty", "self.level = 0"), "contains 2 times"),
    ],
)
def test_what_does_not_fit_is_said(change, why):
    with pytest.raises(DoesNotFitError, match=why):
        plant(SOURCE, change)


def test_a_bug_is_found_where_its_function_has_gone():
    change = [Change("Tank.fill", "litres > most", "True")]
    other = SOURCE.replace("Tank", "Barrel")
    assert (
        place_of("tank.py", change, {"tank.py": "", "vessels/all.py": SOURCE, "x.py": other})
        == "vessels/all.py"
    )
    assert place_of("tank.py", change, {"tank.py": SOURCE, "all.py": SOURCE}) == "tank.py"
    with pytest.raises(DoesNotFitError, match=r"tank\.py has no Tank\.fill, and they fit no other file"):
        place_of("tank.py", change, {"x.py": other})
    with pytest.raises(DoesNotFitError, match=r"2 files have them: a\.py, b\.py"):
        place_of("tank.py", change, {"a.py": SOURCE, "b.py": SOURCE})


def test_what_is_drawn_follows_from_the_seed_and_is_always_another_program():
    drawn = draw({"tank.py": SOURCE}, seed=5, count=100)
    assert drawn == draw({"tank.py": SOURCE}, seed=5, count=100)
    assert drawn != draw({"tank.py": SOURCE}, seed=6, count=100)
    programs = {each.planted(SOURCE) for each in drawn}
    assert len(programs) == len(drawn) > 5
