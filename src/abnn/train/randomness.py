"""Random numbers that belong to a key: where they are drawn and in which order does not matter."""

from __future__ import annotations

import contextlib
import hashlib
import random
from collections.abc import Iterator

import numpy as np
import torch


@contextlib.contextmanager
def preserved_random_state(*generators: torch.Generator) -> Iterator[None]:
    """Leave the global random states of torch, numpy and random, and these generators, as they were."""
    states = torch.get_rng_state(), np.random.get_state(), random.getstate()
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else None
    own = [(generator, generator.get_state()) for generator in generators]
    try:
        yield
    finally:
        torch.set_rng_state(states[0])
        np.random.set_state(states[1])
        random.setstate(states[2])
        if cuda is not None:
            torch.cuda.set_rng_state_all(cuda)
        for generator, state in own:
            generator.set_state(state)


def number(*key: object) -> int:
    """Return a seed that belongs to the key."""
    return int.from_bytes(hashlib.sha256(repr(key).encode()).digest()[:7], "big")


def seed_everything(*key: object) -> None:
    """Set the global random states of torch, numpy and random to values that belong to the key."""
    seed = number(*key)
    seed_torch(seed)
    np.random.seed(seed % 2**32)
    random.seed(seed)


def seed_torch(seed: int) -> None:
    """Set the global random states of torch, on all devices that there are."""
    if torch.cuda.is_available() or torch.backends.mps.is_available():
        torch.manual_seed(seed)
    else:  # the above notes the whole call stack for every kind of device that is absent, a millisecond at each step
        torch.default_generator.manual_seed(seed)


def seeded(*key: object) -> torch.Generator:
    return torch.Generator().manual_seed(number(*key))
