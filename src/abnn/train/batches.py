"""Batches for training: checked, on the device, and the same for the same seed.

torchdata's StatefulDataLoader would be one more dependency. It resumes the loader's own random state, which here
follows from (seed, epoch, step) anyway.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from contextlib import contextmanager
from functools import cached_property
from itertools import islice
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, DistributedSampler, IterableDataset

from abnn.config import DEFAULT_TASK
from abnn.errors import AbnnWarning, InputError, explain
from abnn.model.calls import evaluating
from abnn.model.inputs import LABELS, Inputs, call, main_input
from abnn.outliers import measure_range
from abnn.predict.inputs import check_channels, check_inputs, split_batch, without_embedding
from abnn.tasks import TASKS
from abnn.tensors import row_hashes, rows_digest, tensor_digest
from abnn.train.randomness import number, preserved_random_state, seed_everything, seed_torch
from abnn.train.resident import Resident, resident, tensors_in

SAMPLED = 16  # how many items of a data set tell it from others, at least
REMEMBERED = 256  # inputs by which a calibration notices that its data are those of the fit, at least
MEASURED = 10  # batches of each process from which the range of values and the targets are measured


class Batches:
    """A loader whose batches are checked, and depend on (seed, epoch, step) only.

    model  says what inputs and labels must look like: by its input_shape, input_dtype and classes
    """

    def __init__(self, loader: Iterable[Any], model: Any, fabric: Any, seed: int) -> None:
        if isinstance(loader, Tensor | str | bytes) or not isinstance(loader, Iterable) or isinstance(loader, Iterator):
            accepted = "something that yields (x, y) batches every time it is iterated"
            fix = "Use torch.utils.data.DataLoader, or a list of batches."
            raise InputError(explain("loader", type(loader).__name__, accepted, fix))
        self.model, self.seed, self.fabric = model, seed, fabric
        self.source: Any = loader
        self.loader: Any = loader
        on_device = resident(loader, fabric.device) if fabric.world_size == 1 else None
        if on_device is not None:
            self.loader = on_device
        elif isinstance(loader, DataLoader):
            self.loader = _loader_of_process(loader, fabric, seed)
        self.samplers = _samplers(loader if on_device is not None else self.loader)
        self.generators = generators_of(loader)
        self.rank, self.device = fabric.global_rank, fabric.device
        self.length = _length(self.loader)
        self.hashes: list[int] = []  # of the first inputs of the last pass through the first epoch
        self._check_not_empty(self.length)

    def epoch(self, epoch: int, skip: int = 0) -> Iterator[tuple[int, Any, Tensor]]:
        """Yield batches with their numbers. The first ``skip`` ones are loaded, but not yielded."""
        seed_everything(self.seed, "order", epoch)
        for generator in self.generators:
            generator.manual_seed(number(self.seed, "order", epoch))
        for sampler in self.samplers:
            if hasattr(sampler, "set_epoch"):
                sampler.set_epoch(epoch)
        if epoch == 0:
            self.hashes = []
        iterator = self._on_device() if isinstance(self.loader, DataLoader) else iter(self.loader)
        step = 0
        draws = not isinstance(self.loader, Resident)  # whether loading a batch may draw random numbers
        while True:
            if draws or step == 0:
                seed_everything(self.seed, "load", epoch, step, self.rank)
            try:
                batch = next(iterator)
            except StopIteration:
                break
            if step >= skip:
                try:
                    # On CUDA every look at values makes the host wait, so later epochs rely on the first.
                    x, y = check_batch(self.model, batch, values=epoch == 0 or self.device.type != "cuda")
                    check_channels(self.model, x)
                except InputError as error:
                    raise InputError(f"{error} Found in batch {step} of the loader, counted from 0.") from error
                if epoch == 0 and len(self.hashes) < REMEMBERED:
                    self.hashes += row_hashes(main_input(x))
                if draws:
                    seed_everything(self.seed, "step", epoch, step, self.rank)
                else:
                    seed_torch(number(self.seed, "step", epoch, step, self.rank))
                yield step, _trainable(x).to(self.device), _trainable(y).to(self.device)
            step += 1
        self._check_not_empty(step)

    def _on_device(self) -> Iterator[Any]:
        # As a generator it begins when the first batch is asked for: a DataLoader then draws the order.
        for batch in self.loader:
            yield self.fabric.to_device(batch)

    def _check_not_empty(self, count: int | None) -> None:
        if count == 0:
            fix = "Check data set and drop_last."
            raise InputError(explain("loader", "a loader without batches", "at least one batch", fix))

    @cached_property
    def identity(self) -> dict[str, Any]:
        """What tells this data from other data without reading all of it: counts, some items, and the first batch.

        The first batch belongs to the seed, so it tells other orders and other batch sizes. It is read twice.
        """
        data: Any = getattr(self.source, "dataset", self.source if isinstance(self.source, list | tuple) else None)
        result: dict[str, Any] = {"batches": self.length, "inputs": _length(data)}
        can_pick = isinstance(data, Dataset) and isinstance(data, Sized) and not isinstance(data, IterableDataset)
        if (tensors := tensors_in(data)) is not None:
            result["sha256"] = rows_digest(*tensors)
        elif can_pick or isinstance(data, list | tuple):
            result["sha256"] = _items_digest(data, len(data))
        result["first"] = _repeated_digest(lambda: [_tensors_of(*batch) for batch in islice(self.once(), 1)])
        return result

    def warn_if_not_repeatable(self) -> None:
        """Warn where a run that goes on from a checkpoint may get other batches than one that was not interrupted."""
        if isinstance(self.loader, DataLoader) and self.loader.persistent_workers:
            text = (
                "loader: got persistent_workers=True beside a checkpoint. Such workers are seeded once, not in every "
                "epoch: if the data set draws random numbers, a run that goes on from its checkpoint gets others, and "
                "does not end as if it had not been interrupted. Give persistent_workers=False unless it draws none."
            )
            warnings.warn(text, AbnnWarning, stacklevel=5)

    def value_range(self, layout: str | None = None) -> tuple[Tensor, Tensor]:
        """Return the smallest and largest value of each channel over the first batches of all processes."""
        low, high = measure_range((x for x, _ in islice(self.once(), MEASURED)), layout)
        return self.fabric.all_reduce(low, reduce_op="min"), self.fabric.all_reduce(high, reduce_op="max")

    def targets(self) -> Tensor:
        """Return the targets of the first batches; where there are several processes, those of the first one."""
        targets = torch.cat([y for _, y in islice(self.once(), MEASURED)])
        return targets if self.fabric.world_size == 1 else self.fabric.broadcast(targets)

    def some_inputs(self) -> frozenset[int]:
        """Return hashes of some inputs; none where inputs repeat, because other data may hold such inputs, too."""
        hashes = frozenset(self.hashes)
        return hashes if len(hashes) == len(self.hashes) else frozenset()

    def once(self) -> Iterator[tuple[Any, Tensor]]:
        """Return one pass over the data, in the order of the first epoch."""
        return ((x, y) for _, x, y in self.epoch(0))


def generators_of(loader: Any) -> list[torch.Generator]:
    """Return the random generators that the caller gave a DataLoader and its samplers, each once."""
    holders = [loader, *_samplers(loader)] if isinstance(loader, DataLoader) else []
    generators = [getattr(holder, "generator", None) for holder in holders]
    return list({id(each): each for each in generators if isinstance(each, torch.Generator)}.values())


def _length(data: Any) -> int | None:
    """Return how many items there are; None where that is not known before they are read."""
    try:
        return len(data)
    except (TypeError, NotImplementedError):  # a DataLoader has a length only if its data set has one
        return None


def _trainable(x: Any) -> Any:
    """Return the tensors themselves, or copies where they are of inference mode, which gradients cannot pass."""
    return x.clone() if x.is_inference() else x


def _loader_of_process(loader: DataLoader, fabric: Any, seed: int) -> DataLoader:
    """Return the loader of this process's share of the data, in an order that belongs to the run's seed.

    Fabric divides the data. It also wraps the loader, and the wrapper tells samplers how often it was iterated as the
    number of the epoch. A run that goes on from a checkpoint does not know that number, so the loader inside is taken.
    A sampler that the caller made for several processes keeps its seed.
    """
    share: DataLoader = fabric.setup_dataloaders(loader)._dataloader
    for sampler in _samplers(share):
        if isinstance(sampler, DistributedSampler) and not any(sampler is each for each in _samplers(loader)):
            sampler.seed = number(seed, "order")
    return share


def _items_digest(data: Any, count: int) -> str | None:
    """Return a sha256 over some items, see :func:`_repeated_digest`; None where an item is not an input and a label."""

    def read() -> list[list[Tensor]]:
        seed_everything("identity")
        items = (data[place] for place in range(0, count, max(1, count // SAMPLED)))
        return [[torch.as_tensor(part) for part in _parts(item)] for item in items]

    try:
        with preserved_random_state():
            return _repeated_digest(read)
    except Exception:  # noqa: BLE001 - a data set may raise anything; a training step explains it better
        return None


def _repeated_digest(read: Callable[[], list[list[Tensor]]]) -> str | None:
    """Return a sha256 over what two readings of some items agree in: all parts, else the labels; None where in neither.

    Labels come last in each item.
    """

    def digest(items: list[list[Tensor]]) -> str:
        return tensor_digest({f"{n} {p}": part for n, item in enumerate(items) for p, part in enumerate(item)})

    first, second = read(), read()
    if digest(first) == digest(second):
        return digest(first)
    labels, again = (digest([parts[-1:] for parts in items]) for items in (first, second))
    return labels if labels == again else None


def _tensors_of(x: Any, y: Tensor) -> list[Tensor]:
    """Return the tensors of a batch, labels last."""
    return [*(x.values.values() if isinstance(x, Inputs) else [x]), y]


def _parts(item: Any) -> list[Any]:
    """Return the values of an item, one after the other; those of a dict in the order of their names, labels last."""
    if isinstance(item, Mapping):
        item = [item[name] for name in sorted(item, key=lambda name: (name in LABELS, str(name)))]
    return [part for each in item for part in (_parts(each) if isinstance(each, Mapping | tuple | list) else [each])]


def _samplers(loader: Any) -> list[Any]:
    """Return the samplers that may order a loader's data."""
    return [getattr(loader, "sampler", None), getattr(getattr(loader, "batch_sampler", None), "sampler", None)]


def check_batch(model: Any, batch: Any, values: bool = True) -> tuple[Any, Tensor]:
    """Return (x, y) of one batch. A batch that does not fit the model is an error.

    values  whether to check the values as well, not only shapes
    """
    several = getattr(model, "input_forms", None) is not None
    inputs, labels = split_batch(model, batch)
    if labels is None or not (several or len(batch) == 2):
        actual = f"{type(batch).__name__} of {len(batch)}" if isinstance(batch, tuple | list) else type(batch).__name__
        accepted = 'pairs (inputs, labels), or dicts with "labels"' if several else "pairs (inputs, labels)"
        raise InputError(explain("loader", actual, accepted, "Let the data set return (x, y)."))
    x, y = check_inputs(model, inputs, values), torch.as_tensor(labels)
    task = getattr(model, "task", None) or TASKS[DEFAULT_TASK]  # a network without attachments has none
    return x, task.check_targets(y, len(x), model.classes, values)


@contextmanager
def explained_tokens(model: Any, loader: Any) -> Iterator[None]:
    """Inside, an IndexError becomes an error that names the first batch of tokens on which the backbone fails.

    If there is no such batch, the IndexError stays.
    """
    try:
        yield
    except IndexError:
        if model.input_dtype.is_floating_point:
            raise
        for batch in loader:
            x = check_batch(model, batch)[0].to(model.device)
            try:
                with torch.no_grad(), evaluating(model.backbone):
                    call(model.backbone, x)
            except IndexError as error:
                raise without_embedding(x, error) from error
        raise
