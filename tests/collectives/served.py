"""The variables of a scene on one parameter server, where tables lie by themselves: what replicas must come to."""

import numpy as np

from dtrain.learning import optimizers
from dtrain.parameters.placement import plan
from dtrain.parameters.replica_memory import ReplicaMemory, RowRoutes
from dtrain.parameters.store import Store


class Served:
    """A store, and the gradients that a scene gives it."""

    def __init__(self, scene):
        self.scene = scene
        served = plan(scene.variables, 1)
        values, self.memory, self.routes = ReplicaMemory(served), ReplicaMemory(served), RowRoutes(served)
        initial = scene.initial()
        for name, array in values.variables.items():
            array[...] = initial[name]
        config = optimizers.serialize(scene.optimizer)
        self.store = Store(served.layout(0), config, values.blocks[0], max_steps=scene.steps)
        for table in self.store.tables:
            first = initial[table.shard.name]
            for name, array in {"": first, **scene.optimizer.initial_slots(first)}.items():
                if name in table.arrays:
                    table.fill(name, array)

    @property
    def values(self):
        tables = {table.shard.name: table.values for table in self.store.tables}
        return {**self.store.layout.views(self.store.values), **tables}

    def gradient(self, number, part):
        """Return the blocks of a part's gradient, and what `Scene.compute` tells."""
        rows = {}
        told = self.scene.compute(number, part, self.values, self.memory.variables, rows)
        dense = [np.array(block) for block in self.memory.blocks[0]]
        return [*dense, *self.routes.blocks(rows)[0]], *told

    def hold_against(self, arena, version):
        """Hold what replicas have made against it."""
        ours = arena.store(optimizers.serialize(self.scene.optimizer), version=version)
        for name, right in self.values.items():
            assert ours.variables[name].tobytes() == right.tobytes(), name
        ours_by_slot = ours.all_slots()
        for slot, of_variables in self.store.all_slots().items():
            views = ours_by_slot[slot]
            for name, right in of_variables.items():
                assert views[name].tobytes() == right.tobytes(), f"{slot} of {name}"
