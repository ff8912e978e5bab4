"""The leader: `machine` decides when to save, `driver` talks to servers; starts, orders, saving, recovery."""
