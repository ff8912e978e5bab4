"""The leader's epochs when the servers go back to a checkpoint: what ended after it ends again, with the
numbers that count.
"""

from training.test_loop import OthersTrainToo, followed, sums

from dtrain.callbacks import History


class GoesBack(OthersTrainToo):
    """After its second step the servers stand at step 3 again; the checkpoint has the row of the epoch
    before.
    """

    def commit(self, *contribution):
        answer = super().commit(*contribution)
        if self.course == [3, 6]:
            self.recorded = {0: self.recorded[0]}
            self.tally = ((1, sums(2, 7.0)), (2, sums(2, 1.0)))
        return answer


class IsElsewhere(OthersTrainToo):
    """When the leader records its last epoch the servers have just begun another term, a step before the last
    one.
    """

    refuses = True

    def record(self, epoch, rows):
        if epoch == 3 and self.refuses:
            self.refuses, self.course = False, [5, 6]
        else:
            super().record(epoch, rows)


def test_epochs_that_the_servers_have_lost_end_again():
    session, history = GoesBack([0, 5, 3, 6]), History()
    session.tally = ((0, sums(2, 4.0)), (1, sums(2, 5.0)))
    followed(session, history)
    assert session.recorded == {0: {"loss": 4.0}, 1: {"loss": 7.0}, 2: {"loss": 1.0}}
    history.take(session.recorded)
    assert history.history == {"loss": [4.0, 7.0, 1.0]}


def test_an_epoch_that_could_not_be_recorded_ends_again():
    session, history = IsElsewhere([0, 5, 6]), History()
    session.tally = tuple((epoch, sums(2, 4.0)) for epoch in range(3))
    followed(session, history)
    assert session.recorded.keys() == {0, 1, 2}
