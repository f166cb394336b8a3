# %% [markdown]
# # A regression
#
# After this tutorial a network that predicts a number says how far it may be off, and when not to believe it. It takes a few seconds.
#
# The table has 442 patients with ten measurements each, and how far their diabetes went on within a year. It comes with scikit-learn. You need
# `pip install 'abnn[pandas]'`.
#
# ## Data in three parts

# %%
import torch
from sklearn.datasets import load_diabetes
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

table = load_diabetes(scaled=False)
x = torch.tensor(table.data, dtype=torch.float32)
y = torch.tensor(table.target, dtype=torch.float32)
order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
train, val, test = order[:240], order[240:340], order[340:]
mean, std = x[train].mean(0), x[train].std(0)
x = (x - mean) / std
train_loader = DataLoader(TensorDataset(x[train], y[train]), batch_size=32, shuffle=True)
val_loader = DataLoader(TensorDataset(x[val], y[val]), batch_size=64)
len(train), len(val), len(test)

# %% [markdown]
# ## A network, as always
# It has one output: the number.

# %%
torch.manual_seed(0)


class Scaled(nn.Module):
    """Gives the output in the units of the targets."""

    def __init__(self, middle, spread):
        super().__init__()
        self.middle, self.spread = middle, spread

    def forward(self, x):
        return self.middle + self.spread * x


network = nn.Sequential(
    nn.Linear(10, 64),
    nn.ReLU(),
    nn.Linear(64, 64),
    nn.ReLU(),
    nn.Linear(64, 1),
    Scaled(y[train].mean(), y[train].std()),
)
optimizer = torch.optim.Adam(network.parameters(), lr=1e-3, weight_decay=1e-3)
for _epoch in range(30):
    for rows, targets in train_loader:
        optimizer.zero_grad()
        nn.functional.mse_loss(network(rows)[:, 0], targets).backward()
        optimizer.step()
network.eval()
error = (network(x[test])[:, 0] - y[test]).abs().mean()
print(f"off by {error:.0f} on average; the targets spread over {y[test].std():.0f}")

# %% [markdown]
# ## Attach, fit, calibrate
# `task="regression"` is all that differs from classes.

# %%
import abnn

model = abnn.attach(network, example=x[:1], task="regression")
abnn.fit(model, train_loader, progress=False)
abnn.calibrate(model, val_loader, progress=False)
p = model.predict(x[test])
p.to_pandas().head(6)

# %% [markdown]
# ## Intervals that hold
# `p.interval(0.9)` gives a lower and an upper bound for each row. Nine of ten targets should lie between them, for rows like those of calibration.

# %%
for share in (0.5, 0.8, 0.9):
    low, high = p.interval(share)
    inside = ((low[:, 0] <= y[test]) & (y[test] <= high[:, 0])).float().mean()
    print(f"{share:.0%} asked for, {inside:.0%} of the {len(test)} test rows are inside")

# %% [markdown]
# ## Two reasons for a wide interval
# *Noise*: patients with the same measurements differ (`p.aleatoric`). *Ignorance*: there were few patients like this one (`p.epistemic`). More data
# helps against the second only. We move one test row away from the data, step by step, along one column.

# %%
import matplotlib.pyplot as plt

steps = torch.linspace(-8, 8, 81)
moved = x[test[:1]].repeat(81, 1)
moved[:, 2] = steps
said = model.predict(moved)
low, high = said.interval(0.9)
figure, (top, bottom) = plt.subplots(2, 1, figsize=(7, 5), sharex=True)
top.fill_between(steps, low[:, 0], high[:, 0], alpha=0.25, label="interval(0.9)")
top.plot(steps, said.mean[:, 0], label="prediction")
top.axvspan(float(x[train, 2].min()), float(x[train, 2].max()), alpha=0.08, color="green", label="where data lie")
top.set_ylabel("progression")
top.legend(loc="upper left")
bottom.plot(steps, said.aleatoric[:, 0], label="noise")
bottom.plot(steps, said.epistemic[:, 0], label="ignorance")
bottom.set(xlabel="body mass index, in standard deviations from the mean", ylabel="width")
legend = bottom.legend()

# %% [markdown]
# ## Verdicts
# Rows like the data are accepted. Rows far from it are not.

# %%
from collections import Counter

far = x[test] + 6 * torch.randn(x[test].shape, generator=torch.Generator().manual_seed(1)).sign()
for name, rows in {"test rows": x[test], "far rows": far}.items():
    print(f"{name:10}", dict(Counter(model.predict(rows).verdict)))

# %% [markdown]
# ## Next
# * What exactly is promised about intervals? [Regression](../regression.md)
# * Classes instead of a number? [A table](table.md)
