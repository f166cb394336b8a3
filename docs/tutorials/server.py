# %% [markdown]
# # From a model to a server
#
# After this tutorial a model answers over HTTP, in a process without PyTorch, and tells you when its pictures change. It takes about a minute.
#
# You need `pip install 'abnn[export,serve]'`.
#
# ## A model
# A small network reads handwritten digits. `abnn.build_backbone` makes it, so the saved folder knows how to make it again. Another network is named on
# the command line: `--backbone module:function`.

# %%
import numpy as np
import torch
from sklearn.datasets import load_digits, load_sample_image
from torch.utils.data import DataLoader, TensorDataset

import abnn

digits = load_digits()
torch.manual_seed(0)
order = torch.randperm(len(digits.target))  # writers are mixed
x = torch.tensor(digits.images, dtype=torch.float32)[order, None] / 16
y = torch.tensor(digits.target)[order]
train_loader = DataLoader(TensorDataset(x[:1000], y[:1000]), batch_size=50, shuffle=True)
val_loader = DataLoader(TensorDataset(x[1000:1400], y[1000:1400]), batch_size=100)

network = abnn.build_backbone("paper-resnet", classes=10, in_channels=1, width=8, blocks=1, stem="small")
optimizer = torch.optim.Adam(network.parameters(), lr=3e-3)
for _epoch in range(15):
    for pictures, labels in train_loader:
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(network(pictures), labels).backward()
        optimizer.step()
network.eval()

model = abnn.attach(network, example=x[:1])
abnn.fit(model, train_loader, progress=False)
abnn.calibrate(model, val_loader, progress=False)
saved = model.save("my-model", backbone=True, extra={"class_names": list("0123456789")})

# %% [markdown]
# ## Export
# An *export* is one folder with everything: network, attachments, score and thresholds. It is compared with the model before it is written.

# %%
# !abnn export my-model exported

# %% [markdown]
# ## Serve
# In a terminal you would write `abnn serve exported`, and open the page that it names. Here Python starts it, so that this page can go on.

# %%
import json
import subprocess
import time
import urllib.request

address = "http://127.0.0.1:8765"
command = ["abnn", "serve", "exported", "--port", "8765"]
server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def ask(path, body=None, method=None):
    """Send a request and return its answer."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(address + path, data, {"Content-Type": "application/json"}, method=method)
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)


for _attempt in range(300):  # until it is there
    try:
        ready = ask("/ready")
        break
    except OSError:
        time.sleep(0.2)
print(ready)

# %% [markdown]
# ## Ask it
# A program sends a picture as a file, or as text in base64:

# %%
import base64
import io

from PIL import Image


def encode(picture):
    """Return a picture as PNG in base64."""
    file = io.BytesIO()
    Image.fromarray((np.asarray(picture) * 255).astype(np.uint8)).save(file, "PNG")
    return base64.b64encode(file.getvalue()).decode()


for name, picture in {"a digit": x[1400, 0], "a photograph": load_sample_image("china.jpg") / 255}.items():
    answer = ask("/predict", {"image": encode(picture)})
    print(f"{name}: {answer['class_name']}, {answer['verdict']}, score {answer['score']:.1f}. {answer['reason']}")

# %% [markdown]
# `verdict` says what the answer is worth, `reason` why. `http://127.0.0.1:8765/docs` lists all requests.
#
# ## Drift
# The thresholds promise something about pictures like those of calibration. *Drift* is when pictures change. The server watches its scores and raises an alarm.
#
# First come 200 digits like those of calibration. Then somebody turns the camera upside down:


# %%
def send(pictures):
    """Send pictures, 20 at once, and print what the server thinks of all so far."""
    for start in range(0, len(pictures), 20):
        ask("/predict/batch", {"images": [encode(picture) for picture in pictures[start : start + 20]]})
    drift = ask("/drift")
    print(f"alarm: {drift['alarm']}. {drift['message']}")


send(x[1400:1600, 0])
send(x[1600:1797, 0].flip(1, 2))

# %% [markdown]
# The alarm stays on until a person resets it: on the page, or by a request. `GET /metrics` tells it to Prometheus, so that somebody is called.

# %%
ask("/drift", method="DELETE")["alarm"]

# %%
server.terminate()
stopped = server.wait(timeout=60)

# %% [markdown]
# ## Next
# * Everything that the server can do, and what it does under load: [serve](../serve.md).
# * What is in an exported folder, and how equal is equal: [export](../export.md).
# * What an alarm says, and what it does not: [drift](../how-to/drift.md).
# * A container, a dashboard, MLflow: [in production](../production.md).
