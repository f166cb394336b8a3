"""Batches for training: checked, on the device, and the same for the same seed.

torchdata's StatefulDataLoader would be one more dependency, and resumes the loader's own random state, which here follows
from (seed, epoch, step) anyway.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from contextlib import contextmanager
from functools import cached_property
from itertools import islice
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    Subset,
    TensorDataset,
    default_collate,
)

from abnn.config import DEFAULT_TASK
from abnn.errors import AbnnWarning, InputError, explain
from abnn.model.blocks import evaluating
from abnn.model.inputs import LABELS, Inputs, call, main_input
from abnn.outliers import measure_range
from abnn.predict.inputs import check_inputs, split_batch, without_embedding
from abnn.tasks import TASKS
from abnn.tensors import row_hashes, rows_digest, tensor_digest
from abnn.train.randomness import number, preserved_random_state, seed_everything, seed_torch

SAMPLED = 16  # items of a data set that stand for all of them, at least
REMEMBERED = 256  # inputs by which a calibration tells whether its data are those of the fit, at least
MEASURED = 10  # batches of each process from which ranges of values and targets are measured


class Batches:
    """A loader whose batches are checked, and depend on (seed, epoch, step) alone.

    ``model`` says what inputs and labels must look like: its input_shape, input_dtype and classes.
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
            self.loader = _share_out(loader, fabric, seed)
        self.samplers = _samplers(loader if on_device is not None else self.loader)
        self.generators = generators_of(loader)
        self.rank, self.device = fabric.global_rank, fabric.device
        self.length = _length(self.loader)
        self.hashes: list[int] = []  # of the first inputs of the last pass through the first epoch
        self._check_some(self.length)

    def epoch(self, epoch: int, skip: int = 0) -> Iterator[tuple[int, Any, Tensor]]:
        """Batches with their numbers; the first ``skip`` ones are loaded but not given."""
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
        chance = not isinstance(self.loader, Resident)  # whether loading a batch may draw random numbers
        while True:
            if chance or step == 0:
                seed_everything(self.seed, "load", epoch, step, self.rank)
            try:
                batch = next(iterator)
            except StopIteration:
                break
            if step >= skip:
                try:
                    # On CUDA every look at values makes the host wait, so later epochs rely on the first.
                    x, y = check_batch(self.model, batch, values=epoch == 0 or self.device.type != "cuda")
                except InputError as error:
                    raise InputError(f"{error} Found in batch {step} of the loader, counted from 0.") from error
                if epoch == 0 and len(self.hashes) < REMEMBERED:
                    self.hashes += row_hashes(main_input(x))
                if chance:
                    seed_everything(self.seed, "step", epoch, step, self.rank)
                else:
                    seed_torch(number(self.seed, "step", epoch, step, self.rank))
                yield step, _ordinary(x).to(self.device), _ordinary(y).to(self.device)
            step += 1
        self._check_some(step)

    def _on_device(self) -> Iterator[Any]:
        for batch in self.loader:  # begun when the first batch is asked for: a DataLoader then draws the order
            yield self.fabric.to_device(batch)

    def _check_some(self, count: int | None) -> None:
        if count == 0:
            fix = "Check data set and drop_last."
            raise InputError(explain("loader", "a loader without batches", "at least one batch", fix))

    @cached_property
    def identity(self) -> dict[str, Any]:
        """What tells data from other data without reading all of it: how many batches and inputs, some of these, and the first batch.

        The first batch belongs to the seed, so it tells other orders and sizes of batches. It is read twice.
        """
        data: Any = getattr(self.source, "dataset", self.source if isinstance(self.source, list | tuple) else None)
        result: dict[str, Any] = {"batches": self.length, "inputs": _length(data)}
        can_pick = isinstance(data, Dataset) and isinstance(data, Sized) and not isinstance(data, IterableDataset)
        if (found := _tensors(data)) is not None:
            result["sha256"] = rows_digest(*found)
        elif can_pick or isinstance(data, list | tuple):
            result["sha256"] = _items_digest(data, len(data))
        result["first"] = _repeated_digest(lambda: [_tensors_of(*batch) for batch in islice(self.once(), 1)])
        return result

    def warn_if_not_repeatable(self) -> None:
        """Warn where a run that goes on from a checkpoint may get other batches than one that was not interrupted."""
        if isinstance(self.loader, DataLoader) and self.loader.persistent_workers:
            text = (
                "loader: got persistent_workers=True beside a checkpoint. Such workers are seeded once, not in every "
                "epoch: if the data set draws random numbers, a run that goes on from its checkpoint gets others, and does "
                "not end as if it had not been interrupted. Give persistent_workers=False unless it draws none."
            )
            warnings.warn(text, AbnnWarning, stacklevel=5)

    def value_range(self, layout: str | None = None) -> tuple[Tensor, Tensor]:
        """Smallest and largest value of each channel over the first batches of all processes."""
        low, high = measure_range((x for x, _ in islice(self.once(), MEASURED)), layout)
        return self.fabric.all_reduce(low, reduce_op="min"), self.fabric.all_reduce(high, reduce_op="max")

    def targets(self) -> Tensor:
        """The targets of the first batches; of the first process where there are several."""
        found = torch.cat([y for _, y in islice(self.once(), MEASURED)])
        return found if self.fabric.world_size == 1 else self.fabric.broadcast(found)

    def some_inputs(self) -> frozenset[int]:
        """Hashes that tell some inputs from all others; none where inputs repeat, so that other data may hold them, too."""
        some = frozenset(self.hashes)
        return some if len(some) == len(self.hashes) else frozenset()

    def once(self) -> Iterator[tuple[Any, Tensor]]:
        return ((x, y) for _, x, y in self.epoch(0))


def generators_of(loader: Any) -> list[torch.Generator]:
    """The random generators that a DataLoader and its samplers were given by the caller, each once."""
    holders = [loader, *_samplers(loader)] if isinstance(loader, DataLoader) else []
    generators = [getattr(holder, "generator", None) for holder in holders]
    return list({id(each): each for each in generators if isinstance(each, torch.Generator)}.values())


def _length(data: Any) -> int | None:
    """How many items there are; None where that is not known before they are read."""
    try:
        return len(data)
    except (TypeError, NotImplementedError):  # a DataLoader has a length only if its data set has one
        return None


def _ordinary(x: Any) -> Any:
    """As it is, or a copy of tensors of inference mode, which gradients cannot pass."""
    return x.clone() if x.is_inference() else x


def _share_out(loader: DataLoader, fabric: Any, seed: int) -> DataLoader:
    """The loader of this process's share of the data, in an order that belongs to the run's seed.

    Fabric deals the data out. It also wraps the loader and tells samplers, as the number of an epoch, how often that was
    iterated, which a run that goes on from a checkpoint does not know: so the loader itself is taken. A sampler that the
    caller has made for several processes keeps the seed it has.
    """
    share: DataLoader = fabric.setup_dataloaders(loader)._dataloader
    for sampler in _samplers(share):
        if isinstance(sampler, DistributedSampler) and not any(sampler is own for own in _samplers(loader)):
            sampler.seed = number(seed, "order")
    return share


def _items_digest(data: Any, count: int) -> str | None:
    """sha256 over some items, see :func:`_repeated_digest`; None where an item is not an input and a label."""

    def read() -> list[list[Tensor]]:
        seed_everything("identity")
        items = (data[place] for place in range(0, count, max(1, count // SAMPLED)))
        return [[torch.as_tensor(part) for part in _parts(item)] for item in items]

    try:
        with preserved_random_state():
            return _repeated_digest(read)
    except Exception:  # noqa: BLE001 - anything may happen in there; a step of training says it better
        return None


def _repeated_digest(read: Callable[[], list[list[Tensor]]]) -> str | None:
    """sha256 over items that two readings agree in: over all parts, over their labels, which come last, or None."""

    def digest(items: list[list[Tensor]]) -> str:
        return tensor_digest({f"{n} {p}": part for n, item in enumerate(items) for p, part in enumerate(item)})

    first, second = read(), read()
    if digest(first) == digest(second):
        return digest(first)
    labels, again = (digest([parts[-1:] for parts in items]) for items in (first, second))
    return labels if labels == again else None


def _tensors_of(x: Any, y: Tensor) -> list[Tensor]:
    """The tensors of a batch, labels last."""
    return [*(x.values.values() if isinstance(x, Inputs) else [x]), y]


def _parts(item: Any) -> list[Any]:
    """The values of an item, one after the other; those of a dict in the order of their names, labels last."""
    if isinstance(item, Mapping):
        item = [item[name] for name in sorted(item, key=lambda name: (name in LABELS, str(name)))]
    return [part for each in item for part in (_parts(each) if isinstance(each, Mapping | tuple | list) else [each])]


def _samplers(loader: Any) -> list[Any]:
    """What the order of a loader's data may come from."""
    return [getattr(loader, "sampler", None), getattr(getattr(loader, "batch_sampler", None), "sampler", None)]


def check_batch(model: Any, batch: Any, values: bool = True) -> tuple[Any, Tensor]:
    """(x, y) of one batch, or an error that says what is wrong with it; shapes alone if not ``values``."""
    several = getattr(model, "input_forms", None) is not None
    inputs, labels = split_batch(model, batch)
    if labels is None or not (several or len(batch) == 2):
        given = f"{type(batch).__name__} of {len(batch)}" if isinstance(batch, tuple | list) else type(batch).__name__
        accepted = 'pairs (inputs, labels), or dicts with "labels"' if several else "pairs (inputs, labels)"
        raise InputError(explain("loader", given, accepted, "Let the data set return (x, y)."))
    x, y = check_inputs(model, inputs, values), torch.as_tensor(labels)
    task = getattr(model, "task", None) or TASKS[DEFAULT_TASK]  # a network as it is has none
    return x, task.check_targets(y, len(x), model.classes, values)


@contextmanager
def explained_tokens(model: Any, loader: Any) -> Iterator[None]:
    """Inside, an IndexError becomes an error that names the first batch of tokens on which the backbone fails, if one is there."""
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


# -- batches of tensors are cut out at once, instead of item by item; those of small data sets on the device ----------------

LARGEST = 2**30  # bytes that are copied to a device
_HELD: WeakKeyDictionary[Dataset, dict[torch.device, tuple[list[Tensor], list[Tensor], Any]]] = WeakKeyDictionary()
"""Copies of data sets by device, what they were made of, and which tensors that were, how often written to, and which rows."""


class Resident:
    """Gives the batches of a DataLoader over tensors, or some rows of them, on a CUDA device, in the same order.

    Small data sets are copied there once for all runs that use them. Of others, batches go there while the device computes. What lies
    there already is not copied.
    """

    def __init__(self, loader: DataLoader, device: torch.device) -> None:
        found = _tensors(loader.dataset)
        assert found is not None
        self.loader, self.device = loader, device
        self.tensors, self.places = list(found[0]), found[1]
        size = sum(tensor[:1].numel() * tensor.element_size() for tensor in self.tensors) * len(loader.dataset)  # type: ignore[arg-type]
        here = self.tensors[0].device
        is_there = here.type == device.type and device.index in (None, here.index)
        if not is_there and size <= LARGEST:
            held = _HELD.setdefault(loader.dataset, {})
            versions = [(id(each), None if each.is_inference() else each._version) for each in self.tensors]
            now = versions, None if self.places is None else self.places.tolist()
            if device not in held or held[device][2] != now:
                some = self.tensors if self.places is None else [tensor[self.places] for tensor in self.tensors]
                held[device] = [tensor.to(device) for tensor in some], self.tensors, now
            self.tensors, self.places = held[device][0], None
        if device.type == "cuda":  # runs on other streams may read them from now on
            torch.cuda.synchronize(device)

    def __len__(self) -> int:
        return len(self.loader)

    def __iter__(self) -> Iterator[list[Tensor]]:
        # A DataLoader draws a seed for its workers before its sampler draws one for the order.
        torch.empty((), dtype=torch.int64).random_(generator=self.loader.generator)
        return self._batches()

    def _batches(self) -> Iterator[list[Tensor]]:
        batches = list(self.loader.batch_sampler)  # type: ignore[arg-type]
        order = torch.tensor([row for rows in batches for row in rows], dtype=torch.int64)
        order = order if self.places is None else self.places[order]
        for index in order.to(self.tensors[0].device).split([len(rows) for rows in batches]):
            yield [self._pick(tensor, index) for tensor in self.tensors]

    def _pick(self, tensor: Tensor, rows: Tensor) -> Tensor:
        if tensor.device.type == self.device.type:
            return tensor.index_select(0, rows)
        found = torch.empty(len(rows), *tensor.shape[1:], dtype=tensor.dtype, pin_memory=True)
        return torch.index_select(tensor, 0, rows, out=found).to(self.device, non_blocking=True)


def resident(loader: Any, device: torch.device) -> Resident | None:
    """A loader's batches of tensors, or None where it gives others, or there is no CUDA device."""
    if device.type != "cuda" or type(loader) is not DataLoader or (found := _tensors(loader.dataset)) is None:
        return None
    plain = loader.collate_fn is default_collate and isinstance(loader.batch_sampler, BatchSampler)
    here = len({tensor.device for tensor in found[0]}) == 1
    return Resident(loader, device) if plain and here else None


def _tensors(data: Any) -> tuple[Sequence[Tensor], Tensor | None] | None:
    """The tensors of a data set and which of their rows belong to it, None: all; nothing for another data set."""
    if type(data) is TensorDataset:
        return data.tensors, None
    if type(data) is Subset and type(data.dataset) is TensorDataset:
        return data.dataset.tensors, torch.as_tensor(data.indices, dtype=torch.int64) % len(data.dataset)
    return None
