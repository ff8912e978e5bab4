"""The numeric library, in numpy alone: layers, losses, metrics, networks, optimizers. No IO and no clock."""
