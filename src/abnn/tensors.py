"""Tensors and state trees in files: safetensors plus JSON, complete or absent; loading never runs code."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor

from abnn.errors import FileFormatError
from abnn.files import check_regular, reading, write_bytes

Tree = Any
"""Nested dicts, lists and tuples of tensors, numbers, strings, booleans and None."""
HASHED = 1024
LOOKED_AT = 64  # rows of a tensor that stand for all of them, at least


def write_tensors(path: Path, tensors: dict[str, Tensor]) -> None:
    write_bytes(path, save({name: value.detach().cpu().contiguous().clone() for name, value in tensors.items()}))


def read_tensors(path: Path) -> dict[str, Tensor]:
    with reading(path, "a readable safetensors file", SafetensorError):
        return load_file(str(check_regular(path)))


def write_tree(path: Path, tree: Tree) -> None:
    """Write one safetensors file: tensors, everything else as JSON in a byte tensor, and the sha256 of all of it."""
    tensors: dict[str, Tensor] = {}
    skeleton = json.dumps(_strip(tree, tensors), allow_nan=True)
    tensors["tree"] = torch.frombuffer(bytearray(skeleton.encode()), dtype=torch.uint8)
    tensors["digest"] = torch.frombuffer(bytearray.fromhex(tensor_digest(tensors)), dtype=torch.uint8)
    write_tensors(path, tensors)


def read_tree(path: Path) -> Tree:
    """Return what :func:`write_tree` wrote; a file without a digest is one of an older version."""
    tensors = read_tensors(path)
    digest = tensors.pop("digest", None)
    if digest is not None and bytes(digest.flatten().view(torch.uint8).numpy()).hex() != tensor_digest(tensors):
        raise FileFormatError(f"{path} was changed since it was written: restore it, or delete it to start anew.")
    if "tree" not in tensors:
        raise FileFormatError(f"{path} holds tensors but no state tree; it was not written by abnn.")
    try:
        return _restore(json.loads(bytes(tensors["tree"].numpy()).decode()), tensors)
    except (ValueError, KeyError, TypeError, AttributeError, StopIteration, RecursionError) as error:
        raise FileFormatError(f"{path} holds a state tree that is not one of abnn's ({error!r}).") from None


def _strip(node: Tree, tensors: dict[str, Tensor]) -> Any:
    if isinstance(node, Tensor):
        name = str(len(tensors))
        tensors[name] = node
        return {"tensor": name}
    if isinstance(node, dict):
        return {"dict": [[_strip(key, tensors), _strip(value, tensors)] for key, value in node.items()]}
    if isinstance(node, list | tuple):
        return {type(node).__name__: [_strip(value, tensors) for value in node]}
    if node is None or isinstance(node, bool | int | float | str):
        return node
    raise TypeError(f"cannot store {type(node).__name__} in a state tree")


def _restore(node: Any, tensors: dict[str, Tensor]) -> Tree:
    if not isinstance(node, dict):
        return node
    kind, value = next(iter(node.items()))
    if kind == "tensor":
        return tensors[value]
    if kind == "dict":
        return {_restore(key, tensors): _restore(item, tensors) for key, item in value}
    items = [_restore(item, tensors) for item in value]
    return tuple(items) if kind == "tuple" else items


def rows_digest(tensors: Sequence[Tensor], places: Tensor | None = None) -> str:
    """Return the sha256 over some rows of tensors, which stand for all of them, or for those at ``places``."""

    def some(each: Tensor) -> Tensor:
        every = slice(None, None, max(1, len(each if places is None else places) // LOOKED_AT))
        return each[every] if places is None else each[places[every].to(each.device)]

    return tensor_digest({str(number): some(each) for number, each in enumerate(tensors)})


def row_hashes(x: Any) -> list[int]:
    """Return a hash of each row, from about ``HASHED`` of its values; within this process alone equal rows have equal ones."""
    rows = x.detach().reshape(len(x), -1)
    step = rows.shape[1] // HASHED | 1  # odd, so that it does not stay in one column of an image
    return [hash(row.tobytes()) for row in rows[:, ::step].cpu().contiguous().view(torch.uint8).numpy()]


def tensor_digest(state: Mapping[str, Tensor]) -> str:
    """Return the sha256 over names, shapes, types and bytes of tensors; other things in a state are passed over."""
    digest = hashlib.sha256()
    for name, value in sorted(state.items()):
        if not isinstance(value, Tensor):
            continue
        digest.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
        whole = value.detach().cpu().clone(memory_format=torch.contiguous_format)  # one row of many is not contiguous
        digest.update(whole.flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
