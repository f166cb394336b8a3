"""Data sets, one file per source, and :func:`open_source`, which opens any of them from one line of text."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from abnn.data.arrays import ArraySource
from abnn.data.classes import choose_classes, match_labels, split_classes
from abnn.data.folders import FolderSource
from abnn.data.form import InputForm
from abnn.data.images import read_image
from abnn.data.source import Chunk, Source
from abnn.errors import InputError, explain

if TYPE_CHECKING:
    from abnn.data.digits import DigitsData, Labelled, load_digits
    from abnn.data.named import data_root, open_named

_LATER = {"DigitsData": "digits", "Labelled": "digits", "load_digits": "digits", "data_root": "named"}
_LATER |= {"open_named": "named"}
"""Names that are imported when first used: they need torch, and exported models run without it."""
__all__ = ["ArraySource", "Chunk", "DigitsData", "FolderSource", "InputForm", "Labelled", "Source", "choose_classes"]
__all__ += ["data_root", "load_digits", "match_labels", "open_named", "open_source", "read_image"]


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module 'abnn.data' has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(f"abnn.data.{_LATER[name]}"), name)
    return value


def open_source(text: str, root: str | Path | None = None) -> Source:
    """Return a source of data: a folder of images, an ``.npz`` file, or a data set by name such as "mnist/test".

    text  "SOURCE", or "NAME=SOURCE" to call it something else in tables; "SOURCE[CLASS, ...]" for some of its classes
    root  where data sets by name are kept; see :mod:`abnn.data.named`
    """
    name, _, rest = text.partition("=")
    name, text = (name.strip(), rest) if "=" in text and not Path(text).exists() else ("", text)
    path = Path(text).expanduser()
    plain, classes = (text, None) if path.exists() else split_classes(text)
    if classes is not None:
        return choose_classes(open_source(plain, root), classes, name or text)
    if not text.strip():
        raise InputError(explain("source", "nothing", "a folder of images, an .npz file, or a data set by name"))
    if path.is_dir():
        return FolderSource(path, name or None)
    if path.suffix.lower() == ".npz":
        return ArraySource(path, name or None)
    if path.is_file():
        fix = "Put single images into a folder, and arrays into an .npz file."
        raise InputError(explain("source", f"the file {path}", "a folder of images or an .npz file", fix))
    if path.is_absolute() or text.startswith("."):
        raise InputError(explain("source", f"{text}, which does not exist", "a folder of images or an .npz file"))
    from abnn.data.named import open_named

    return open_named(text, root, name or None)
