"""The leader: `machine` decides when to save or restore, `driver` talks to servers; start, orders, saving."""
