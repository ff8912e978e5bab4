"""Variables of which every replica has a copy, and the optimizers that are applied to them."""
