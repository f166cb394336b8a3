# %% [markdown]
# # A Hugging Face text classifier
#
# After this tutorial a text classifier of the `transformers` library says which sentences it should not judge. It takes about a minute on a laptop.
#
# Our classifier reads a sentence of documentation and says which library it is about: matplotlib, numpy, pandas or torch. The sentences are the
# docstrings of these libraries, so nothing is downloaded. You need `pip install 'abnn[pandas]' transformers`.
#
# ## Sentences

# %%
import inspect
import random
import re

import matplotlib.axes
import matplotlib.figure
import numpy
import pandas
import torch

PLACES = {
    "matplotlib": [matplotlib.axes.Axes, matplotlib.figure.Figure, matplotlib.patches, matplotlib.colors],
    "numpy": [numpy, numpy.linalg, numpy.random, numpy.ndarray],
    "pandas": [pandas, pandas.DataFrame, pandas.Series, pandas.Index],
    "torch": [torch, torch.nn, torch.nn.functional, torch.Tensor, torch.optim],
}


def sentences_of(place):
    """All sentences in the docstrings of a place, without code and without the library's name."""
    for name in sorted(dir(place)):
        text = inspect.getdoc(getattr(place, name)) or ""
        for sentence in re.split(r"(?<=[a-z]\.)\s+|\n\s*\n", text):
            words = re.findall(r"[a-z]+", re.sub("matplotlib|numpy|pandas|torch|ndarray|tensor", "", sentence.lower()))
            if 6 <= len(words) <= 24 and ">>>" not in sentence:
                yield " ".join(words)


LIBRARIES = sorted(PLACES)
random.seed(0)
examples = []
for label, library in enumerate(LIBRARIES):
    own = sorted({sentence for place in PLACES[library] for sentence in sentences_of(place)})
    examples += [(sentence, label) for sentence in random.sample(own, 1200)]
random.shuffle(examples)
train, val, test = examples[:3200], examples[3200:4000], examples[4000:]
for sentence, label in train[:4]:
    print(f"{LIBRARIES[label]:10} {sentence}")

# %% [markdown]
# ## A tokenizer and a network
# You would load both by name, with `from_pretrained`. Here a small tokenizer and a small DistilBERT are made from nothing, and trained for a few epochs.

# %%
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from torch.utils.data import DataLoader
from transformers import DistilBertConfig, DistilBertForSequenceClassification, PreTrainedTokenizerFast

raw = Tokenizer(models.WordPiece(unk_token="[UNK]"))
raw.pre_tokenizer = pre_tokenizers.Whitespace()
raw.train_from_iterator(
    [sentence for sentence, _ in train], trainers.WordPieceTrainer(vocab_size=3000, special_tokens=["[PAD]", "[UNK]"])
)
tokenizer = PreTrainedTokenizerFast(tokenizer_object=raw, pad_token="[PAD]", unk_token="[UNK]")


def encode(texts):
    return dict(tokenizer(list(texts), padding="max_length", truncation=True, max_length=32, return_tensors="pt"))


def collate(pairs):
    texts, labels = zip(*pairs, strict=True)
    return {**encode(texts), "labels": torch.tensor(labels)}


train_loader = DataLoader(train, batch_size=64, shuffle=True, collate_fn=collate)
val_loader = DataLoader(val, batch_size=64, collate_fn=collate)

torch.manual_seed(0)
config = DistilBertConfig(vocab_size=len(tokenizer), dim=64, hidden_dim=128, n_layers=3, n_heads=4, num_labels=4)
network = DistilBertForSequenceClassification(config)
optimizer = torch.optim.AdamW(network.parameters(), lr=1e-3)
for _epoch in range(5):
    for batch in train_loader:
        optimizer.zero_grad()
        network(**batch).loss.backward()
        optimizer.step()
network.eval()

texts, labels = zip(*test, strict=True)
with torch.no_grad():
    right = network(**encode(texts)).logits.argmax(1) == torch.tensor(labels)
print(f"{right.float().mean():.1%} of the test sentences are right")

# %% [markdown]
# ## Attach, fit, calibrate
# A batch is a dictionary, as the network takes it, with `labels` in it. Padding does not count. Outliers are made by themselves: words that come from other
# sentences.

# %%
import abnn

model = abnn.attach(network, example=encode(["one sentence"]))
abnn.fit(model, train_loader, progress=False)
abnn.calibrate(model, val_loader, progress=False)
p = model.predict(encode(texts))
print(f"{(p.label == torch.tensor(labels)).float().mean():.1%} right with attachments")

# %% [markdown]
# ## Ask it
# Sentences of the test set, and some that are about no library at all.

# %%
asked = [
    "return the cumulative sum of the elements along a given axis",
    "draw a line between two points and set its color and width",
    "drop rows with missing values and reset the index of the frame",
    "applies a linear transformation to the incoming data and stores the gradient",
    "in der nacht regnet es und am morgen scheint wieder die sonne",
    "the copyright holder is not liable for any damages arising from this software",
    "beat the eggs with sugar and bake the cake for forty minutes",
    "qx zv kj wq pf gh xx yy zz qq jj kk",
]
p = model.predict(encode(asked))
p.to_pandas(class_names=LIBRARIES)[["label", "score", "verdict"]].assign(sentence=asked)

# %% [markdown]
# The network names a library for each of them: it has no other answer. Scores of the last four are higher than those of the first four. Whether
# that is enough for a *notice* depends on how well the network itself can tell things apart. This one is tiny, and saw 3,200 sentences.
#
# ## How many?
# Verdicts for all test sentences, and for sentences made of words at random.

# %%
from collections import Counter

words = [word for sentence, _ in train for word in sentence.split()]
jumbled = [" ".join(random.choices(words, k=len(sentence.split()))) for sentence, _ in test]
for name, group in {"test sentences": texts, "jumbled words": jumbled}.items():
    counted = Counter(model.predict(encode(group)).verdict)
    print(f"{name:15}", {verdict: f"{counted[verdict] / len(group):.0%}" for verdict in ("accept", "notice", "reject")})

# %% [markdown]
# Words at random get a notice more often, but most still pass: every word of theirs is a word of documentation, and a network that hardly looks at the
# order of words has nothing to notice. A verdict can only be as good as what the network sees. With a pretrained network it sees more.
#
# ## Are accepted sentences right more often?

# %%
p = model.predict(encode(texts))
right = p.label == torch.tensor(labels)
for verdict in ("accept", "notice", "reject"):
    chosen = torch.tensor([each == verdict for each in p.verdict])
    if chosen.any():
        print(f"{verdict:7} {int(chosen.sum()):4} sentences, {right[chosen].float().mean():.0%} right")

# %% [markdown]
# ## Next
# * Keep it: [save and load](../how-to/save.md), or [share it on the Hub](../hub.md).
# * Do you have sentences that do not belong? [Outliers of your own](../how-to/outliers.md).
