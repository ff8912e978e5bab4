"""Servers by hand, of both kinds."""

import pytest
from roles.by_hand import Hand

from dtrain.learning import optimizers


@pytest.fixture(params=["sync", "async"])
def hand(request):
    """Initialised servers, with a slot for every variable."""
    hand = Hand(updates=request.param, optimizer=optimizers.SGD(0.5, momentum=0.9))
    hand.initialise()
    return hand
