"""A model in loops of one's own: its variables in every replica, and gradients of a loss by them."""
