"""What a job has to score: the same list whenever it is asked for, each input in exactly one shard."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as some

from abnn.batch.plan import MOST_PARTS, _cuts, list_inputs, read_counts, read_shard, write_plan
from abnn.batch.reading import read_raw
from abnn.errors import FileFormatError, InputError


@given(some.lists(some.integers(0, 60)), some.integers(1, 25))
def test_shards_cover_every_row_once(groups: list[int], size: int) -> None:
    cuts = list(_cuts(groups, size))
    assert [row for first, count in cuts for row in range(first, first + count)] == list(range(sum(groups)))
    largest = max([size, *(-(-rows // MOST_PARTS) for rows in groups)])
    assert all(0 < count <= largest for _, count in cuts)
    assert len(cuts) <= 2 * sum(groups) / size + len([rows for rows in groups if rows > size]) + 1


def test_a_folder_has_one_order_and_hidden_files_are_left_out(tmp_path: Path) -> None:
    for name in ("b/2.png", "b/10.JPG", "a/x.webp", ".hidden/1.png", "a/.2.png", "_plan/3.png", "a/notes.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"")
    odd = os.fsdecode(b"\xff.png")
    (tmp_path / odd).write_bytes(b"")
    source = list_inputs(str(tmp_path))
    names = list(source.names)
    assert source.kind == "files" and names == [b"\xff.png", b"a/x.webp", b"b/10.JPG", b"b/2.png"]
    write_plan(tmp_path / "plan", list_inputs(str(tmp_path)), 3)
    assert read_counts(tmp_path / "plan") == [3, 1]
    assert (
        read_shard(tmp_path / "plan", 0, 3).names == names[:3]
        and read_shard(tmp_path / "plan", 1, 3).names == names[3:]
    )
    raw = list(read_raw(read_shard(tmp_path / "plan", 0, 3), source.root, None, None))
    assert raw[0] == ("\ufffd.png", tmp_path / odd) and raw[1][0] == "a/x.webp"


def test_many_shards_are_found_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("abnn.batch.plan.AT_ONCE", 10)
    (tmp_path / "list.txt").write_text("".join(f"{number}.png\n" for number in range(50)) + "\n")
    write_plan(tmp_path / "plan", list_inputs(str(tmp_path / "list.txt")), 3)
    assert pq.ParquetFile(tmp_path / "plan").metadata.num_row_groups == 6
    names = [name for number in range(17) for name in read_shard(tmp_path / "plan", number, 3).names or []]
    assert names == [f"{number}.png".encode() for number in range(50)]


def test_rows_of_parquet_files_are_read_where_they_are(tmp_path: Path) -> None:
    for name, rows, group in (("a.parquet", 40, 7), ("b.parquet", 45, 45)):
        numbers = [f"{name}{number}" for number in range(rows)]
        pq.write_table(pa.table({"text": numbers, "own": range(rows)}), tmp_path / name, row_group_size=group)
    write_plan(tmp_path / "_plan", list_inputs(str(tmp_path)), 10)
    shards = [read_shard(tmp_path / "_plan", number, 10) for number in range(len(read_counts(tmp_path / "_plan")))]
    found = [row for shard in shards for row in read_raw(shard, str(tmp_path), "text", None)]
    assert found == [
        (f"{n}:{row}", f"{n}{row}") for n, rows in (("a.parquet", 40), ("b.parquet", 45)) for row in range(rows)
    ]
    assert [name for name, _ in read_raw(shards[-1], str(tmp_path), "text", "own")] == ["40", "41", "42", "43", "44"]
    pq.write_table(pa.table({"text": ["other"]}), tmp_path / "b.parquet")
    with pytest.raises(InputError, match=r"b\.parquet, which was changed"):
        list(read_raw(shards[-1], str(tmp_path), "text", None))


def test_what_cannot_be_scored_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="a folder without images"):
        list_inputs(str(tmp_path))
    with pytest.raises(InputError, match="no file and no folder"):
        list_inputs(str(tmp_path / "nothing"))
    np.savez(tmp_path / "arrays.npz", images=np.zeros((2, 8, 8), np.uint8))
    with pytest.raises(InputError, match=r"arrays\.npz, which is no text; accepted: .*abnn predict"):
        list_inputs(str(tmp_path / "arrays.npz"))
    (tmp_path / "a.png").write_bytes(b"")
    (tmp_path / "b.parquet").write_bytes(b"")
    with pytest.raises(InputError, match="with images and Parquet files"):
        list(list_inputs(str(tmp_path)).names)
    with pytest.raises(FileFormatError, match=r"b\.parquet is no readable Parquet file"):
        write_plan(tmp_path / "plan", list_inputs(str(tmp_path / "b.parquet")), 3)
