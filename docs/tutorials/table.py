# %% [markdown]
# # A table
#
# After this tutorial a classifier of table rows tells you which rows it should not judge. It takes a few seconds.
#
# The table has 569 tumours with 30 measurements each, and whether they were benign. It comes with scikit-learn. You need `pip install 'abnn[torch,pandas]'`.
#
# ## Data in three parts
# One part trains the network, one chooses thresholds, one shows how well it works. Columns are scaled: mean 0, standard deviation 1.

# %%
import torch
from sklearn.datasets import load_breast_cancer
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

table = load_breast_cancer()
x = torch.tensor(table.data, dtype=torch.float32)
y = torch.tensor(table.target)
order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
train, val, test = order[:300], order[300:430], order[430:]
mean, std = x[train].mean(0), x[train].std(0)
x = (x - mean) / std
train_loader = DataLoader(TensorDataset(x[train], y[train]), batch_size=32, shuffle=True)
val_loader = DataLoader(TensorDataset(x[val], y[val]), batch_size=64)
len(train), len(val), len(test)

# %% [markdown]
# ## A network, as always

# %%
torch.manual_seed(0)
network = nn.Sequential(nn.Linear(30, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2))
optimizer = torch.optim.Adam(network.parameters(), lr=1e-3)
for _epoch in range(30):
    for rows, labels in train_loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(network(rows), labels).backward()
        optimizer.step()
network.eval()
accuracy = (network(x[test]).argmax(1) == y[test]).float().mean()
print(f"{accuracy:.1%} of the test rows are right")

# %% [markdown]
# ## Attach, fit, calibrate
# Outliers for tables are made by themselves: rows off their scale, and rows whose columns do not belong together.

# %%
import abnn

model = abnn.attach(network, example=x[:1])
abnn.fit(model, train_loader, progress=False)
triage = abnn.calibrate(model, val_loader, progress=False)
p = model.predict(x[test])
p.to_pandas(class_names=list(table.target_names)).head(8)

# %% [markdown]
# ## Does it know what it does not know?
# A row with a typing error: someone wrote the fourth measurement in other units, a thousand times too large. And rows that never
# were: the columns of different tumours, mixed.

# %%
from collections import Counter

wrong_unit = x[test].clone()
wrong_unit[:, 3] = wrong_unit[:, 3] + 1000 * mean[3] / std[3]
mixed = torch.stack([column[torch.randperm(len(test))] for column in x[test].T], dim=1)
rows = {"test rows": x[test], "wrong unit": wrong_unit, "mixed rows": mixed}
for name, inputs in rows.items():
    said = model.predict(inputs)
    sure = (said.plain.max(1).values > 0.95).float().mean()
    print(f"{name:12} the network alone is sure of {sure:4.0%};  verdicts: {dict(Counter(said.verdict))}")

# %% [markdown]
# The network alone is sure of rows that cannot exist. The verdicts are not fooled.
#
# ## Are accepted rows right more often?

# %%
right = p.label == y[test]
for verdict in ("accept", "notice", "reject"):
    chosen = torch.tensor([each == verdict for each in p.verdict])
    if chosen.any():
        print(f"{verdict:7} {int(chosen.sum()):4} rows, {right[chosen].float().mean():.1%} right")

# %% [markdown]
# ## Which column was it?
# The *parts* of a score say where a row is unusual. For the row with the wrong unit that is the input itself.

# %%
said = model.predict(wrong_unit[:1])
parts = sorted(((float(part[0]), name) for name, part in said.parts.items()), reverse=True)
for value, name in parts[:3]:
    print(f"{value:8.1f}  {name}")

# %% [markdown]
# ## Next
# * Numbers instead of classes? The same lines work for a network that regresses.
# * Watch a stream of rows: [drift](../how-to/drift.md).
# * Keep the model: [save and load](../how-to/save.md).
