"""The ways to train, one file each; they implement `dtrain.strategies.interface`."""
