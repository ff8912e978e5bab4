"""Sums over several hosts, carried out on streams: `collectives.between_hosts` says who sends what."""
