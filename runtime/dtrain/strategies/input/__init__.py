"""Input of loops of one's own: datasets whose elements hold a batch for each replica."""
