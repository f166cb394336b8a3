"""Changes of bytes, of JSON values, of safetensors files and of the files of a folder. The same random state, the same change."""

from __future__ import annotations

import copy
import json
import random
import struct
from collections.abc import Callable
from typing import Any

from abnn.export import guard

Files = dict[str, Any]
"""Content by name: bytes, or a special file as ("link", target), ("fifo",) or ("folder",)."""

ODD_VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 2, 3, 7, 255, 4096, 10_000, 2**31, 2**53, 2**63, 2**64, -(2**63), 10**400),
    *(0.0, -0.0, 0.5, 1e-320, 1e308, -1e308, float("nan"), float("inf"), -float("inf")),
    *("", "a", "0", "\0", "é", "\ud800", "../../x", "/etc/passwd", "http://127.0.0.1:9/x", "os:system", "a" * 10_000),
    *([], {}, [[]], [0] * 1000, [None], [1, [2]], {"": {}}, {"kind": "Gaussian"}, [-1, 8, 8], [1, 30_000, 30_000]),
    *("float64", "int64", "float16", "bool", "complex64", "float8_e4m3fn", "quint8", "energy", "entropy", "last"),
)
RECIPES: tuple[dict[str, Any], ...] = (
    {"name": "paper-resnet", "classes": 3, "in_channels": 1, "blocks": 200_000},
    {"name": "paper-resnet", "classes": 3, "in_channels": 1, "blocks": 256, "width": 16_384},
    {"name": "paper-resnet", "classes": 1_048_576, "in_channels": 4096, "width": 16_384, "blocks": 1},
    {"name": "paper-resnet", "classes": 3, "in_channels": 1, "width": 3, "stem": "small"},
    {"name": "resnet18", "classes": 3, "in_channels": 1, "weights": "DEFAULT"},
    {"name": "resnet18", "classes": 3, "in_channels": 1, "small": True},
    {"name": "vit_b_16", "classes": 3, "in_channels": 1, "small": True},
    {"name": "vit_b_16", "classes": 3, "in_channels": 3, "image_size": 2048, "patch_size": 1},
    {"name": "vit_b_16", "classes": 3, "in_channels": 3, "num_heads": 7},
    {"name": "vit_h_14", "classes": 3, "in_channels": 3},
    {"name": "timm/resnet18", "classes": 3, "in_channels": 1, "pretrained": True},
    {"name": "timm/resnet18", "classes": 3, "in_channels": 1, "pretrained_cfg": {"url": "http://127.0.0.1:9/x.py"}},
    {"name": "timm/resnet18", "classes": 3, "in_channels": 1, "checkpoint_path": "/etc/passwd"},
    {"name": "timm/resnet18", "classes": 3, "in_channels": 1, "depth": 3},
    {"name": "timm/vit_tiny_patch16_224", "classes": 3, "in_channels": 1, "embed_dim": 16_384, "depth": 256},
    {"name": "timm/vit_tiny_patch16_224", "classes": 3, "in_channels": 1, "img_size": 2048, "patch_size": 1},
    {"name": "timm/hf-hub:someone/thing", "classes": 3, "in_channels": 1},
    {"name": "timm/local-dir:/tmp", "classes": 3, "in_channels": 1},
    {"name": "../../resnet18", "classes": 3, "in_channels": 1},
)
LINKS = ("/dev/zero", "/dev/random", "/etc/hostname", "/proc/self/mem", "/nowhere/at/all", ".", "link")
EXTRA = {
    "evil.py": b"import os; os.system('touch /tmp/evil')",
    "sitecustomize.py": b"import os; os.system('touch /tmp/evil')",
    "pytorch_model.bin": b"cos\nsystem\n(S'touch /tmp/evil'\ntR.",
    "other.json": b'{"format": "abnn-model", "version": 6}',
    "aaa.json": b"[" * 100_000,
    ".hidden": b"",
}


# -- bytes ------------------------------------------------------------------------------------------------------------


def mutate_bytes(rng: random.Random, content: bytes) -> bytes:
    """Return the content with one to three small or large damages."""
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        content = rng.choice(BYTE_DAMAGES)(rng, content)
    return content


def _flip(rng: random.Random, content: bytes) -> bytes:
    damaged = bytearray(content)
    for _ in range(rng.choice((1, 1, 2, 8)) if content else 0):
        damaged[rng.randrange(len(damaged))] ^= 1 << rng.randrange(8)
    return bytes(damaged)


def _cut(rng: random.Random, content: bytes) -> bytes:
    return content[: rng.randrange(len(content) + 1)]


def _drop(rng: random.Random, content: bytes) -> bytes:
    start = rng.randrange(len(content) + 1)
    return content[:start] + content[start + rng.choice((1, 2, 8, 64, 512)) :]


def _insert(rng: random.Random, content: bytes) -> bytes:
    start = rng.randrange(len(content) + 1)
    return content[:start] + rng.randbytes(rng.choice((1, 2, 8, 64, 512))) + content[start:]


def _overwrite(rng: random.Random, content: bytes) -> bytes:
    start, size = rng.randrange(len(content) + 1), rng.choice((1, 2, 4, 8, 64))
    fill = rng.choice((b"\0" * size, b"\xff" * size, rng.randbytes(size), struct.pack("<Q", rng.getrandbits(40))))
    return content[:start] + fill + content[start + len(fill) :]


def _repeat(rng: random.Random, content: bytes) -> bytes:
    start, size = rng.randrange(len(content) + 1), rng.choice((4, 32, 256))
    return content[: start + size] + content[start : start + size] * rng.choice((1, 2, 50)) + content[start + size :]


def _replace_all(rng: random.Random, content: bytes) -> bytes:
    return rng.choice((b"", b"\0" * 64, b"{}", b"[]", b"null", b"\x80\x04.", b"PK\x03\x04", rng.randbytes(200)))


BYTE_DAMAGES: tuple[Callable[[random.Random, bytes], bytes], ...] = (
    *(_flip, _flip, _flip, _flip, _cut, _drop, _insert, _overwrite, _overwrite, _repeat, _replace_all),
)


# -- JSON -------------------------------------------------------------------------------------------------------------


def mutate_json(rng: random.Random, value: Any) -> Any:
    """Return a JSON value in which one or two places hold something else, are missing, or are new."""
    changed = copy.deepcopy(value)
    for _ in range(rng.choice((1, 1, 1, 2))):
        if isinstance(changed, dict) and "backbone" in changed and rng.random() < 0.1:
            changed["backbone"] = copy.deepcopy(rng.choice(RECIPES))
            continue
        places = list(_places(changed))
        if not places:
            return rng.choice(ODD_VALUES)
        holder, key = rng.choice(places)
        action = rng.random()
        if action < 0.6:
            holder[key] = _odd(rng, holder[key])
        elif action < 0.75:
            del holder[key]
        elif action < 0.85 and isinstance(holder, dict):
            holder[rng.choice(("", "weights", "pretrained", "x", "url", "format"))] = rng.choice(ODD_VALUES)
        elif isinstance(holder, list):
            holder.extend(copy.deepcopy(holder) * rng.choice((1, 3)))
        else:
            other, name = rng.choice(places)
            if key in holder and name in (other if isinstance(other, dict) else range(len(other))):
                holder[key] = copy.deepcopy(other[name])
    return changed


def _odd(rng: random.Random, value: Any) -> Any:
    """Return another value, often a near one: those pass the first checks."""
    huge = isinstance(value, int | float) and not abs(value) < 1e300  # which has no near values of other types
    if isinstance(value, bool) or huge or rng.random() < 0.5:
        return copy.deepcopy(rng.choice(ODD_VALUES))
    if isinstance(value, int):
        return rng.choice((value + 1, value - 1, -value, value * 1000, float(value), str(value)))
    if isinstance(value, float):
        return rng.choice((value * 2, -value, value + 1e-9, int(value), str(value)))
    if isinstance(value, str):
        return rng.choice((value + "x", value[:-1], value.upper(), value[::-1], [value]))
    return copy.deepcopy(rng.choice(ODD_VALUES))


def _places(value: Any) -> Any:
    """Yield (holder, key) of every value inside."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in list(items):
        yield value, key
        yield from _places(inner)


def mutate_json_text(rng: random.Random, content: bytes) -> bytes:
    """Return the text of a changed JSON value, or text that only looks like JSON."""
    if rng.random() < 0.1:
        return rng.choice((b"[" * 100_000, b'{"a":' * 50_000, b"1" * 6000, b"\xff\xfe{}", b"NaN", b'{"a": 1, "a": 2}'))
    return json.dumps(mutate_json(rng, json.loads(content))).encode()


# -- safetensors ------------------------------------------------------------------------------------------------------


def mutate_tensors(rng: random.Random, content: bytes) -> bytes:
    """Return a safetensors file whose header says something else, or whose numbers are others."""
    size = struct.unpack("<Q", content[:8])[0]
    header, body = json.loads(content[8 : 8 + size]), content[8 + size :]
    action = rng.random()
    if action < 0.15:
        return struct.pack("<Q", rng.choice((0, 1, size - 1, size + 1, 10**8, 2**40, 2**63, 2**64 - 1))) + content[8:]
    if action < 0.6:
        header = mutate_json(rng, header)
    elif action < 0.7:
        name = rng.choice([each for each in header if each != "__metadata__"])
        header[name]["dtype"] = rng.choice(("F64", "F16", "BF16", "I64", "I32", "U8", "BOOL", "F8_E4M3", "C64", "X"))
    elif action < 0.8:
        names = [each for each in header if each != "__metadata__"]
        first, second = rng.choice(names), rng.choice(names)
        header[first], header[second] = header[second], header[first]
    else:
        start = rng.randrange(max(1, len(body) - 4)) // 4 * 4
        number = rng.choice((float("nan"), float("inf"), -float("inf"), 1e30, -1e30, 0.0, 1e-40))
        body = body[:start] + struct.pack("<f", number) * rng.choice((1, 1, 16)) + body[start + 4 :]
        body = body[: len(content) - 8 - size]
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + body


# -- ONNX -------------------------------------------------------------------------------------------------------------


def mutate_onnx(rng: random.Random, content: bytes) -> bytes:
    """Return a file of ONNX in which one to three small fields say something else: sizes, types, operators, names, numbers."""
    leaves, waiting = [], [("model", 0, len(content))]
    while waiting:
        kind, start, end = waiting.pop()
        for number, first, last in guard._fields(content, start, end):
            inner = guard.INNER.get(kind, {}).get(number)
            if inner is not None:
                waiting.append((inner, first, last))
            elif last > first:
                leaves.append((kind, number, first, last))
    damaged = bytearray(content)
    for _ in range(rng.choice((1, 1, 2, 3))):
        kind, number, first, last = rng.choice(leaves)
        other = rng.choice(
            [leaf for leaf in leaves if leaf[3] - leaf[2] == last - first and leaf[:2] == (kind, number)]
        )
        if rng.random() < 0.5:
            damaged[first:last] = content[other[2] : other[3]]  # what another field of this kind says
        else:
            place = rng.randrange(first, last)
            damaged[place] = rng.choice((0, 1, 127, damaged[place] ^ 1 << rng.randrange(7), rng.randrange(128)))
    return bytes(damaged)


# -- folders ----------------------------------------------------------------------------------------------------------


def mutate_files(rng: random.Random, files: Files) -> Files:
    """Return a folder in which files are missing, added, exchanged, or no files at all."""
    changed = dict(files)
    name = rng.choice(sorted(changed))
    action = rng.choice(("drop", "add", "link", "fifo", "folder", "swap", "rename"))
    if action == "drop":
        del changed[name]
    elif action == "add":
        extra = rng.choice(sorted(EXTRA))
        changed[extra] = EXTRA[extra]
    elif action == "link":
        changed[name] = ("link", rng.choice(LINKS))
    elif action in ("fifo", "folder"):
        changed[name] = (action,)
    elif action == "swap":
        changed[name] = files[rng.choice(sorted(files))]
    else:
        changed[rng.choice(("abnn.json", "method.json", "model.json", "x", "backbone.safetensors", "model.pt2"))] = (
            changed.pop(name)
        )
    return changed
