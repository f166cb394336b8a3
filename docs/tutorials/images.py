# %% [markdown]
# # An image classifier of your own
#
# After this tutorial you have a classifier for a folder of pictures that refuses what it does not know. It takes about a minute on a laptop.
#
# Our classifier tells apart three materials: brick, grass and gravel. The pictures come with scikit-image, so nothing is downloaded. You need
# `pip install 'abnn[torch]' scikit-image`.
#
# ## A folder of pictures
# Put pictures into one sub-folder for each class. We cut ours out of three large photographs, the left part for training, the right part for
# *validation*: pictures that no training sees.

# %%
from pathlib import Path

import numpy as np
from PIL import Image
from skimage import data

random = np.random.default_rng(0)


def cut(picture, left, right, side=48):
    """One square piece of a picture, from between two columns."""
    row, column = random.integers(512 - side), random.integers(left, right - side)
    return picture[row : row + side, column : column + side]


for name, picture in {"brick": data.brick(), "grass": data.grass(), "gravel": data.gravel()}.items():
    for part, left, right, count in (("train", 0, 340, 120), ("val", 340, 512, 50)):
        folder = Path("materials") / part / name
        folder.mkdir(parents=True)
        for number in range(count):
            Image.fromarray(cut(picture, left, right)).save(folder / f"{number}.png")

sum(1 for _ in Path("materials").rglob("*.png"))

# %% [markdown]
# ## A network
# Any PyTorch network will do. This one is small, and lives in a file of its own, so that the command line can find it.

# %%
source = """
from torch import nn

def build():
    def block(inputs, outputs):
        return nn.Sequential(nn.Conv2d(inputs, outputs, 3, stride=2, padding=1), nn.BatchNorm2d(outputs), nn.ReLU())

    return nn.Sequential(block(1, 16), block(16, 32), block(32, 64), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 3))
"""
with open("materials_net.py", "w") as file:
    print(source, file=file)

# %% [markdown]
# ## One command
# `--train-backbone` trains the network first. If yours is trained already, write `--weights FILE` instead. Then abnn clips its attachments onto the
# network, teaches them, and chooses thresholds on the validation pictures.

# %%
# !abnn fit --backbone materials_net:build --train-backbone --data materials --output my-model --quiet

# %% [markdown]
# `my-model/model` is the model, `my-model/report.html` a page about it.
#
# ## Ask it
# First something like the training data: pieces of the photographs' right part. Then the same pieces at dusk: a fifth darker. Then pictures of
# something else: a cat, a cup of coffee, a page of text.

# %%
asked = Path("asked")
asked.mkdir()
for name, picture in {"brick": data.brick(), "grass": data.grass(), "gravel": data.gravel()}.items():
    piece = cut(picture, 340, 512)
    Image.fromarray(piece).save(asked / f"1 {name}.png")
    Image.fromarray((piece * 0.8).astype(np.uint8)).save(asked / f"2 {name} at dusk.png")
for name, picture in {"cat": data.chelsea(), "coffee": data.coffee(), "page of text": data.page()}.items():
    Image.fromarray(picture).save(asked / f"3 {name}.png")

# %%
# !abnn predict my-model/model asked --backbone materials_net:build --format csv --exit-zero --quiet

# %% [markdown]
# Pieces like the training data have low scores and are accepted. At dusk, scores are higher: how much depends on the material. The cat, the
# coffee and the page are none of the three materials. The network has three answers only, so it names one of them all the same. The
# verdict says what that answer is worth.
#
# ## Why?
# In Python, every prediction tells what its score is made of. 0 is usual, 1 is as high as one ordinary input in six.

# %%
import torch
from materials_net import build

import abnn

model = abnn.load("my-model/model", build())
pictures = {
    path.stem: Image.open(path).convert("L").resize((48, 48), Image.Resampling.BILINEAR)
    for path in sorted(asked.iterdir())
}
x = torch.stack([torch.tensor(np.asarray(picture), dtype=torch.float32)[None] / 255 for picture in pictures.values()])
p = model.predict(x)
for row, name in enumerate(pictures):
    largest = sorted(((float(part[row]), title) for title, part in p.parts.items()), reverse=True)[:2]
    print(f"{name:18} {p.verdict[row]:7}", ", ".join(f"{title} {value:.1f}" for value, title in largest))

# %%
import matplotlib.pyplot as plt

figure, axes = plt.subplots(3, 3, figsize=(7, 7.6))
colors = {"accept": "#2e7d32", "notice": "#b26a00", "reject": "#b3261e"}
for axis, (name, picture), verdict, score in zip(axes.flat, pictures.items(), p.verdict, p.score.tolist()):
    axis.imshow(picture, cmap="gray", vmin=0, vmax=255)
    axis.set_title(f"{name[2:]}\n{verdict}, score {score:.1f}", color=colors[verdict], fontsize=9)
    axis.axis("off")

# %% [markdown]
# ## Next
# * Let others try it: `abnn serve my-model/model --backbone materials_net:build`. [How](../serve.md)
# * Teach it strange pictures that you know: [outliers of your own](../how-to/outliers.md).
# * Choose another promise than 5 %: [thresholds](../how-to/thresholds.md).
