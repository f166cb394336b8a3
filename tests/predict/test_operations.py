"""A default prediction starts few operations: on a GPU each is a kernel, and small networks take no longer than these."""

from __future__ import annotations

import sys
from collections import Counter
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import abnn
from abnn.attached import Attached
from tests.conftest import generator, with_score

CLASSES = 3
MOST = {
    "bayes/closed_form.py": 14, "bayes/witness.py": 4, "scores/combined.py": 15, "tasks/classification.py": 47,
    "predict/": 5,
}  # fmt: skip
"""Operations of a prediction whose score tells classes apart, by where they are called."""


class Operations(TorchDispatchMode):
    """Counts operations that write memory, by the file of this package that calls them; views are none."""

    def __init__(self) -> None:
        super().__init__()
        self.found: Counter[str] = Counter()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        name = function.overloadpacket.__name__
        read = {_memory(each) for each in tree_leaves((args, kwargs)) if isinstance(each, Tensor)}
        made = [each for each in tree_leaves(result) if isinstance(each, Tensor)]
        if name.endswith("_") or any(_memory(each) not in read for each in made) and not name.startswith("empty"):
            frame = sys._getframe(1)
            while frame.f_back is not None and "/abnn/" not in frame.f_code.co_filename:
                frame = frame.f_back
            self.found[frame.f_code.co_filename.rpartition("/abnn/")[2]] += 1
        return result


def _memory(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def make() -> tuple[Attached, Tensor]:
    backbone = abnn.build_backbone("paper-resnet", classes=CLASSES, in_channels=1, width=32, blocks=3).eval()
    x = torch.randn(20 * CLASSES, 1, 28, 28, generator=generator(0))
    model = with_score(abnn.attach(backbone, x[:1]), x)
    assert model.closed_form is not None and model.closed_form.told
    return model, x[:4]


def count(model: Attached, x: Tensor) -> Counter[str]:
    model.predict(x)  # what is made once
    with Operations() as operations:
        model.predict(x)
    return operations.found


def test_a_default_prediction_starts_few_operations() -> None:
    found = count(*make())
    for where, most in MOST.items():
        assert sum(number for file, number in found.items() if file.startswith(where)) <= most, (where, found)


def test_an_attachment_adds_few_operations() -> None:
    model, x = make()
    found, attachments = count(model, x), len(model.attached_blocks)
    assert found["model/bounded.py"] <= 12 * attachments and found["bayes/convolutions.py"] <= 3 * attachments


def test_more_places_take_no_more_operations_but_to_read_them() -> None:
    model, x = make()
    backbone = abnn.build_backbone("paper-resnet", classes=CLASSES, in_channels=1, width=32, blocks=6).eval()
    data = torch.randn(20 * CLASSES, 1, 28, 28, generator=generator(0))
    more = count(with_score(abnn.attach(backbone, x[:1]), data), x)
    for where, number in count(model, x).items():
        if where.startswith(tuple(MOST)):
            assert more[where] == number
