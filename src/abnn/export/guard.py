"""Whether a file in the format of ONNX only computes: no other files, no loops without end, no operators of strangers.

onnxruntime takes more than abnn writes: tensors that lie in other files, functions, operators of any domain, loops. This reads as
much of the format (protobuf) as it takes to find them, before onnxruntime sees the file.
"""

from __future__ import annotations

from collections.abc import Iterator

from abnn.errors import FileFormatError

MOST_FIELDS = 2**22  # a file that abnn writes has some thousands
MOST_DEPTH = 16
FORBIDDEN_OPERATORS = (b"Loop", b"Scan", b"SequenceMap")
INNER = {
    "model": {7: "graph"},
    "graph": {1: "node", 5: "tensor", 15: "sparse"},
    "node": {5: "attribute"},
    "attribute": {5: "tensor", 6: "graph", 10: "tensor", 11: "graph", 22: "sparse", 23: "sparse"},
    "sparse": {1: "tensor", 2: "tensor"},
}
"""Which fields of a message are messages to look into."""


def check_onnx(content: bytes) -> None:
    """Raise :class:`FileFormatError` for a file that holds something other than plain computation, or is not of this format."""
    waiting = [("model", 0, len(content), 0)]
    fields = 0
    while waiting:
        kind, start, end, depth = waiting.pop()
        if depth > MOST_DEPTH:
            raise FileFormatError("graphs lie too deep in each other")
        for number, first, last in _fields(content, start, end):
            fields += 1
            if fields > MOST_FIELDS:
                raise FileFormatError(f"more than {MOST_FIELDS:,} fields")
            inner = INNER.get(kind, {}).get(number)
            if inner is not None:
                waiting.append((inner, first, last, depth + 1))
            elif fault := _fault(kind, number, content[first : min(last, first + 100)]):
                raise FileFormatError(fault)


def _fault(kind: str, number: int, value: bytes) -> str:
    if kind == "tensor" and (number == 13 or (number == 14 and value != b"\0")):
        return "a tensor lies in another file"
    if kind == "node" and number == 4 and value in FORBIDDEN_OPERATORS:
        return f"it has the operator {value.decode()}"
    if kind == "node" and number == 7 and value not in (b"", b"ai.onnx"):
        return f"it has an operator of {value!r}"
    return "it has functions" if kind == "model" and number == 25 else ""


def _fields(content: bytes, place: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Yield number, start and end of each field of a message."""
    while place < end:
        key, place = _varint(content, place, end)
        if key & 7 == 0:
            start, (_, place) = place, _varint(content, place, end)
        elif key & 7 == 2:
            size, start = _varint(content, place, end)
            place = start + size
        else:
            start, place = place, place + {1: 8, 5: 4}.get(key & 7, end)
        if place > end:
            raise FileFormatError("it ends in the middle, or is not in the format of ONNX")
        yield key >> 3, start, place


def _varint(content: bytes, place: int, end: int) -> tuple[int, int]:
    """Return a number of up to ten bytes, and where the next begins."""
    value = 0
    for shift in range(0, 70, 7):
        if place >= end:
            break
        byte = content[place]
        value, place = value | (byte & 127) << shift, place + 1
        if byte < 128:
            return value, place
    raise FileFormatError("it ends in the middle, or is not in the format of ONNX")
