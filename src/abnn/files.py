"""Files that are complete or absent, JSON within bounds, and versions of formats. Tensors: :mod:`abnn.tensors`."""

from __future__ import annotations

import contextlib
import ctypes
import glob
import hashlib
import json
import os
import re
import secrets
import shutil
import stat
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, AnyStr

from abnn._version import __version__
from abnn.errors import FileFormatError, InputError, explain

if TYPE_CHECKING:
    from jinja2 import Environment

MOST_JSON = 2**26  # bytes of a JSON file; what this package writes has far fewer


@contextlib.contextmanager
def writing_directory(target: Path) -> Iterator[Path]:
    """Yield a scratch directory that replaces ``target`` when the block ends without an error; files of the functions below are flushed to disk."""
    target, scratch = _beside(target)
    scratch.mkdir()
    try:
        yield scratch
        try:
            os.rename(scratch, target)  # where nothing is there, or an empty folder
        except OSError:
            if not target.is_dir():
                raise
            if not _exchange(scratch, target):
                _replace_folder(scratch, target)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)  # what failed, or what was there before


def _beside(target: str | Path) -> tuple[Path, Path]:
    """Return where to write, behind a link what that leads to, and a hidden name beside it that is not taken."""
    target = Path(os.path.realpath(target))
    target.parent.mkdir(parents=True, exist_ok=True)
    return target, target.with_name(f".{target.name}.{secrets.token_hex(4)}")


def _replace_folder(scratch: Path, target: Path) -> None:
    """Put a folder in the place of another one in two steps. Where the second fails, the first is undone."""
    old = Path(tempfile.mkdtemp(prefix=f".{target.name}.old.", dir=target.parent))
    os.replace(target, old / "content")
    try:
        os.replace(scratch, target)
    except BaseException:
        os.replace(old / "content", target)  # where that fails, too, it stays, and left_behind() says where
        os.rmdir(old)
        raise
    shutil.rmtree(old, ignore_errors=True)


def _exchange(first: Path, second: Path) -> bool:
    """Let two folders change places in one step, so that neither name is ever absent; return whether the system can."""
    if not sys.platform.startswith("linux"):
        return False
    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)  # not of every C library
    here, exchange = -100, 2  # AT_FDCWD and RENAME_EXCHANGE
    return rename is not None and rename(here, os.fsencode(first), here, os.fsencode(second), exchange) == 0


def left_behind(target: Path) -> str:
    """Return where the former folder is, as a sentence, if a process was killed while it replaced that; else ""."""
    places = [] if target.exists() else list(target.parent.glob(f".{glob.escape(target.name)}.old.*/content"))
    if not places:
        return ""
    newest = max(places, key=lambda each: each.stat().st_mtime)
    return f" Saving was interrupted, and what was there before is in {newest}: rename that to {target}."


def check_replaceable(target: Path, mark: str, what: str = "a saved model", argument: str = "path") -> None:
    """Refuse to replace a folder of another kind, which may hold a user's own files.

    mark      the file that tells a folder of the right kind
    what      a folder of that kind, in words
    argument  what the user gave it as
    """
    if target.exists() and not (target / mark).exists():
        place = f"{target}, which exists and is not {what}"
        raise InputError(explain(argument, place, f"a new folder, or {what} to replace"))


def check_writable(argument: str, target: Path, folder: bool = False) -> None:
    """Refuse a place where nothing can be written, before hours of work and not after. A trial file tells; it is removed.

    folder  ``target`` is a folder for several files, there or not; else a file
    """
    whole = Path(os.path.realpath(target))  # where a link leads to, as writing does
    if not folder and whole.exists() and not whole.is_file():
        kind = "a folder" if whole.is_dir() else "no ordinary file"
        raise InputError(explain(argument, f"{target}, which is {kind}", "a file, new or to replace"))
    place = next(each for each in (whole, *whole.parents)[0 if folder else 1 :] if each.exists())
    try:
        with tempfile.NamedTemporaryFile(prefix=".abnn.", dir=place):
            return
    except OSError as error:
        trouble = f"cannot be written to ({error.strerror})" if place.is_dir() else "is a file"
    fix = "Choose another place, or change its permissions."
    raise InputError(explain(argument, f"{target}, where {place} {trouble}", "a place in a folder of yours", fix))


def write_bytes(path: Path, content: bytes) -> None:
    """Write beside, flush to disk, then rename: a reader sees the old file or the new one, never a part."""
    path, scratch = _beside(path)
    try:
        with open(scratch, "xb") as file:  # with the rights of any new file, which the user's umask decides
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(scratch, path)
    except BaseException:
        scratch.unlink(missing_ok=True)
        raise


def write_text(path: Path, content: str) -> None:
    write_bytes(path, content.encode())


def walk(root: AnyStr, *hidden: AnyStr) -> Iterator[tuple[AnyStr, list[AnyStr]]]:
    """Yield each folder below ``root`` and its files, in a fixed order, but for names that begin with one of ``hidden``.

    Links to folders are followed, unless they lead back to a folder on the way. A folder that cannot be read is an error.
    """
    waiting = [(root, frozenset[AnyStr]())]
    while waiting:
        place, above = waiting.pop()
        if (here := os.path.realpath(place)) in above:
            continue
        with os.scandir(place) as entries:
            leads_on = {each.name: _is_folder(each) for each in entries if not each.name.startswith(hidden)}
        names = sorted(leads_on)
        yield place, [each for each in names if not leads_on[each]]
        waiting += [(os.path.join(place, each), above | {here}) for each in reversed(names) if leads_on[each]]


def _is_folder(entry: os.DirEntry[AnyStr]) -> bool:
    """Return whether an entry is a folder or leads to one; only links are looked up, which takes time for each."""
    return os.path.isdir(entry.path) if entry.is_symlink() else entry.is_dir(follow_symlinks=False)


def templates(folder: Path, **options: Any) -> Environment:
    """Return what fills in the templates of a folder: HTML is escaped, and a name that is not there is an error."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined, select_autoescape

    options |= {"trim_blocks": True, "lstrip_blocks": True, "keep_trailing_newline": True, "undefined": StrictUndefined}
    return Environment(loader=FileSystemLoader(folder), autoescape=select_autoescape(), **options)


def write_json(path: Path, content: object) -> None:
    write_text(path, json.dumps(content, indent=2, sort_keys=True, allow_nan=False) + "\n")


def as_json(argument: str, value: Any) -> Any:
    """Return the value as it will be read back: tuples become lists."""
    try:
        return json.loads(json.dumps(value, allow_nan=False))
    except (TypeError, ValueError) as error:
        accepted = "dicts, lists, strings, finite numbers, booleans and None"
        raise InputError(explain(argument, f"something that JSON cannot hold ({error})", accepted)) from None


def check_regular(path: Path, most: int | None = None) -> Path:
    """Return the path of a file that ends: a pipe would wait for ever, and a device such as /dev/zero has no last byte.

    most  bytes that it may have; None: any number. A file that is not there raises FileNotFoundError, as opening it would
    """
    status = os.stat(path)
    if not stat.S_ISREG(status.st_mode):
        raise FileFormatError(f"{path} is no ordinary file; restore it, or save it again.")
    if most is not None and status.st_size > most:
        raise FileFormatError(
            f"{path} has {status.st_size:,} bytes; accepted: at most {most:,}. It is not a file that abnn wrote."
        )
    return Path(path)


@contextlib.contextmanager
def reading(path: Path, what: str, foreign: type[Exception] = ValueError) -> Iterator[None]:
    """Turn everything that can go wrong while a file is read into one error that names it; ``foreign``: a library's own."""
    try:
        yield
    except FileFormatError:
        raise
    except FileNotFoundError:
        raise FileFormatError(f"{path} does not exist; check the path, or save the model again.") from None
    except (OSError, ValueError, RecursionError, foreign) as error:  # also no UTF-8, numbers or nesting without end
        raise FileFormatError(
            f"{path} is not {what} ({error}); it is damaged, cut short or of another format: restore or save it again."
        ) from None


def read_json(path: Path) -> Any:
    with reading(path, "valid JSON"):
        return json.loads(check_regular(path, MOST_JSON).read_text())


def check_version(
    path: Path,
    description: dict[str, Any],
    newest: int,
    oldest: int = 1,
    earlier: str = "Fit the model again and save it.",
) -> None:
    """Refuse what a later abnn wrote in a format that this one does not know, or what an early one wrote too little of.

    earlier  what to do about the latter
    """
    version = description.get("version")
    if isinstance(version, int) and oldest <= version <= newest:
        return
    early = isinstance(version, int) and version < oldest
    reads = f"formats from {oldest} to {newest}" if oldest > 1 else f"formats up to {newest}"
    reads = f"format {newest}" if oldest == newest else reads
    raise FileFormatError(
        f"path: {path} was written in format {version}, by abnn {description.get('abnn')}; this is abnn {__version__}, "
        f"which reads {reads}. {earlier if early else 'Update abnn.'}"
    )


def only(accepts: Callable[[Any], bool], words: str) -> Any:
    """Return a check for pydantic's ``Annotated`` types: values that are not accepted are refused in these words."""
    from pydantic import AfterValidator

    def check(value: Any) -> Any:
        if not accepts(value):
            raise ValueError(words)
        return value

    return AfterValidator(check)


def parse(schema: Any, values: object, place: str, fix: str) -> Any:
    """Return ``values`` from a file as ``schema``, a pydantic model or a dataclass, or raise an error that names the field.

    place  what stands before the field's name in the error: "triage.", or a path and a colon
    fix    what to do about it, for the error
    """
    from pydantic import TypeAdapter, ValidationError

    try:
        return TypeAdapter(schema).validate_json(json.dumps(values))
    except ValidationError as errors:
        error = errors.errors(include_url=False)[0]
    except (TypeError, ValueError, RecursionError) as problem:
        raise FileFormatError(f"{place} cannot be written as JSON ({problem}). {fix}") from None
    field = ".".join(map(str, error["loc"]))
    words = re.sub(r"^(Input should (be )?|Value error, )", "", error["msg"])
    if error["type"] == "missing":
        raise FileFormatError(f"{place}{field} is missing. {fix}")
    if error["type"] in ("extra_forbidden", "unexpected_keyword_argument"):
        raise FileFormatError(f"{place}{field} is not known; written by a newer version? Update abnn. {fix}")
    text = f"{field} is {repr(error['input'])[:80]}; accepted: {words}." if field else words
    raise FileFormatError(f"{place}{text} {fix}")


def seal(description: Mapping[str, Any]) -> dict[str, Any]:
    """Return a description with the sha256 of all its other fields as ``digest``."""
    fields = {name: value for name, value in description.items() if name != "digest"}
    return {**fields, "digest": hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()}
