"""A PyTorch module trains here as it does under PyTorch's own optimizer."""

import numpy as np
import pytest

import dtrain as dt
from dtrain.strategies.single import SingleStrategy

torch = pytest.importorskip("torch")
X = np.random.default_rng(0).normal(size=(32, 3)).astype(np.float32)
Y = np.arange(32) % 2


def module():
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4), torch.nn.ReLU(), torch.nn.Linear(4, 2)
    )


@pytest.mark.parametrize("metrics", [[], ["accuracy"]])
def test_parameters_and_moving_averages_are_those_of_torch(metrics):
    loss = torch.nn.functional.cross_entropy
    with SingleStrategy().scope():
        model = dt.from_torch(module(), loss)
        model.compile(dt.optimizers.SGD(0.1), metrics=metrics)
        model.fit(X, Y, batch_size=8, epochs=3, shuffle=False, verbose=0)
        found = model.evaluate(X, Y, batch_size=32, return_dict=True)["loss"]
    twin = module()
    optimizer = torch.optim.SGD(twin.parameters(), 0.1)
    for start in [0, 8, 16, 24] * 3:
        optimizer.zero_grad()
        loss(twin(torch.from_numpy(X[start : start + 8])), torch.from_numpy(Y[start : start + 8])).backward()
        optimizer.step()
    for name, tensor in twin.state_dict().items():
        if tensor.is_floating_point():
            np.testing.assert_allclose(model.arrays[name], tensor.numpy(), rtol=1e-4, atol=1e-6)
    twin.eval()
    with torch.no_grad():
        assert found == pytest.approx(loss(twin(torch.from_numpy(X)), torch.from_numpy(Y)).item(), rel=1e-4)
