"""Random numbers that follow from a key. It does not matter where and in which order they are drawn."""

from __future__ import annotations

import contextlib
import hashlib
import random
from collections.abc import Iterator

import numpy as np
import torch


@contextlib.contextmanager
def preserved_random_state(*generators: torch.Generator) -> Iterator[None]:
    """Inside, random numbers may be drawn; afterwards the global random states and these generators are as before."""
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
    """Return a seed that follows from the key."""
    return int.from_bytes(hashlib.sha256(repr(key).encode()).digest()[:7], "big")


def seed_everything(*key: object) -> None:
    """Set the global random states of torch, numpy and random to values that follow from the key."""
    seed = number(*key)
    seed_torch(seed)
    np.random.seed(seed % 2**32)
    random.seed(seed)


def seed_torch(seed: int) -> None:
    """Set the global random state of torch on all devices that this machine has."""
    if torch.cuda.is_available() or torch.backends.mps.is_available():
        torch.manual_seed(seed)
    else:  # manual_seed() records the call stack for every kind of device that is absent: a millisecond at each step
        torch.default_generator.manual_seed(seed)


def seeded(*key: object) -> torch.Generator:
    """Return a generator whose seed follows from the key."""
    return torch.Generator().manual_seed(number(*key))
