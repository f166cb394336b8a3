"""Files are complete or absent, and state trees come back as they were."""

from __future__ import annotations

import json
import math
import os
import re
import stat
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file

from abnn import files, tensors
from abnn.errors import FileFormatError, InputError
from abnn.store.folder import read_folder
from abnn.store.saved import describe
from abnn.store.schema import AttachedModel

from .conftest import generator

names = st.text(max_size=8)
leaves = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | names
trees = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(names | st.integers(), inner, max_size=3)
    ),
    max_leaves=12,
)


@given(tree=trees)
def test_trees_come_back(tree: Any, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("tree") / "state"
    tensors.write_tree(path, tree)
    back = tensors.read_tree(path)
    assert back == tree and repr(back) == repr(tree)  # 1, 1.0 and True are kept apart


def test_tensors_in_trees_come_back(tmp_path: Path) -> None:
    base = torch.randn(4, 6, generator=generator())
    values = [
        base,
        base.t(),
        base[1:, ::2],
        torch.tensor(3.5, dtype=torch.float64),
        torch.zeros(0, 3),
        torch.tensor([True, False]),
        base.to(torch.bfloat16),
        torch.nn.Parameter(base),
        torch.arange(5, dtype=torch.uint8),
    ]
    tensors.write_tree(tmp_path / "state", {"tensors": values, 3: (math.inf, {"tensor": "not one"})})
    back = tensors.read_tree(tmp_path / "state")
    assert back[3] == (math.inf, {"tensor": "not one"})
    for new, old in zip(back["tensors"], values, strict=True):
        assert new.dtype == old.dtype and new.shape == old.shape and torch.equal(new, old.detach())


def test_not_a_number_comes_back(tmp_path: Path) -> None:
    tensors.write_tree(tmp_path / "state", [math.nan])
    assert math.isnan(tensors.read_tree(tmp_path / "state")[0])


def test_optimiser_state_comes_back(tmp_path: Path) -> None:
    weight = torch.nn.Parameter(torch.ones(3))
    optimizer = torch.optim.Adam([weight], lr=0.1)
    weight.sum().backward()
    optimizer.step()
    tensors.write_tree(tmp_path / "state", optimizer.state_dict())
    other = torch.optim.Adam([torch.nn.Parameter(torch.ones(3))], lr=0.5)
    other.load_state_dict(tensors.read_tree(tmp_path / "state"))
    assert str(other.state_dict()) == str(optimizer.state_dict())


def test_what_cannot_be_stored_is_named(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="cannot store set"):
        tensors.write_tree(tmp_path / "state", {"a": {1, 2}})
    assert not list(tmp_path.iterdir())


# -- damaged files -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("read", [tensors.read_tree, tensors.read_tensors, files.read_json])
def test_missing_files(tmp_path: Path, read: Any) -> None:
    with pytest.raises(FileFormatError, match="does not exist"):
        read(tmp_path / "nothing")


@pytest.mark.parametrize("keep", [0, 1, 7, 8, 20, 0.5, 0.99])
def test_truncated_trees(tmp_path: Path, keep: float) -> None:
    path = tmp_path / "state"
    tensors.write_tree(path, {"a": torch.ones(100)})
    content = path.read_bytes()
    path.write_bytes(content[: int(keep * len(content)) if isinstance(keep, float) else keep])
    with pytest.raises(FileFormatError, match="damaged, cut short or of another format"):
        tensors.read_tree(path)


def test_foreign_files(tmp_path: Path) -> None:
    path = tmp_path / "state"
    path.write_bytes(b"\x80\x04 a pickle, perhaps")
    with pytest.raises(FileFormatError, match="not a readable safetensors file"):
        tensors.read_tensors(path)
    save_file({"weight": torch.ones(1)}, str(path))
    with pytest.raises(FileFormatError, match="not written by abnn"):
        tensors.read_tree(path)
    for tree in (b"{", b'{"tensor": "9"}', b'{"dict": 3}', b"\xff\xfe"):
        save_file({"tree": torch.frombuffer(bytearray(tree), dtype=torch.uint8)}, str(path))
        with pytest.raises(FileFormatError, match="not one of abnn's"):
            tensors.read_tree(path)


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe\x00", b"{'a': 1}"])
def test_damaged_json(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(content)
    with pytest.raises(FileFormatError, match="not valid JSON"):
        files.read_json(path)


def test_folders_are_no_files(tmp_path: Path) -> None:
    for read in (files.read_json, tensors.read_tensors):
        with pytest.raises(FileFormatError, match=str(tmp_path)):
            read(tmp_path)


# -- writing -----------------------------------------------------------------------------------------------------------


def test_json_is_stable_and_strict(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "er" / "config.json"
    files.write_json(path, {"b": 1, "a": [1.5, None]})
    assert path.read_text() == json.dumps({"a": [1.5, None], "b": 1}, indent=2) + "\n"
    assert files.read_json(path) == {"a": [1.5, None], "b": 1}
    with pytest.raises(ValueError, match="Out of range"):
        files.write_json(path, {"a": math.nan})
    assert files.read_json(path)["b"] == 1


def test_a_failed_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    files.write_text(path, "old")

    def fail(*_: Any) -> None:
        raise OSError("disk full")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fail)
        with pytest.raises(OSError, match="disk full"):
            files.write_text(path, "new")
    assert path.read_text() == "old" and list(tmp_path.iterdir()) == [path]
    files.write_text(path, "new")
    assert path.read_text() == "new"


def test_folders_appear_complete(tmp_path: Path) -> None:
    target = tmp_path / "a" / "model"
    with files.writing_directory(target) as scratch:
        (scratch / "one").write_text("1")
        assert not target.exists()
    assert (target / "one").read_text() == "1"
    with files.writing_directory(target) as scratch:
        (scratch / "two").write_text("2")
        assert (target / "one").exists()
    assert [path.name for path in target.iterdir()] == ["two"]
    assert list(target.parent.iterdir()) == [target]


@pytest.mark.parametrize("mask", [0o022, 0o077, 0o002])
def test_rights_are_those_of_any_new_file(tmp_path: Path, mask: int) -> None:
    """Who keeps new files private, or shares them with a group, does so with a model as well."""
    before = os.umask(mask)
    try:
        files.write_text(tmp_path / "file", "mine")
        with files.writing_directory(tmp_path / "model") as scratch:
            files.write_text(scratch / "inner", "mine")
    finally:
        os.umask(before)
    for name, rights in (("file", 0o666), ("model", 0o777), ("model/inner", 0o666)):
        assert stat.S_IMODE((tmp_path / name).stat().st_mode) == rights & ~mask


def test_links_lead_to_what_is_written(tmp_path: Path) -> None:
    """A link stays a link, and nothing is left beside it; one that leads to nothing leads to the new file afterwards."""
    places = ("there", "file", "to there", "to file", "to new", "new", "to new file", "new file")
    there, file, to_there, to_file, to_new, new, to_new_file, new_file = (tmp_path / name for name in places)
    there.mkdir()
    file.write_text("old")
    for link, end in ((to_there, there), (to_file, file), (to_new, new), (to_new_file, new_file)):
        link.symlink_to(end)
    for link in (to_there, to_new):
        with files.writing_directory(link) as scratch:
            (scratch / "one").write_text("1")
    for link in (to_file, to_new_file):
        files.write_text(link, "new")
    assert (there / "one").read_text() == (new / "one").read_text() == "1"
    assert file.read_text() == new_file.read_text() == "new"
    assert sorted(each.name for each in tmp_path.iterdir()) == sorted(places)
    assert all(link.is_symlink() for link in (to_there, to_file, to_new, to_new_file))


def test_a_failed_folder_leaves_the_old_one(tmp_path: Path) -> None:
    target = tmp_path / "model"
    with files.writing_directory(target) as scratch:
        (scratch / "one").write_text("1")
    with pytest.raises(KeyboardInterrupt), files.writing_directory(target) as scratch:
        (scratch / "one").write_text("half")
        raise KeyboardInterrupt
    assert (target / "one").read_text() == "1" and list(tmp_path.iterdir()) == [target]


def test_a_failed_exchange_brings_the_old_folder_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "_exchange", lambda first, second: False)  # as on other systems than Linux
    target = tmp_path / "model"
    with files.writing_directory(target) as scratch:
        (scratch / "one").write_text("1")
    plain, calls = os.replace, []

    def second_fails(source: Any, destination: Any) -> None:
        calls.append(source)
        if len(calls) == 2:
            raise OSError("no")
        plain(source, destination)

    monkeypatch.setattr(os, "replace", second_fails)
    with pytest.raises(OSError, match="no"), files.writing_directory(target) as scratch:
        (scratch / "one").write_text("2")
    assert (target / "one").read_text() == "1" and list(tmp_path.iterdir()) == [target]


def test_what_cannot_be_put_back_is_not_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that renames once and never again: the only copy of the old folder is the one that was moved aside."""
    monkeypatch.setattr(files, "_exchange", lambda first, second: False)
    target, plain, calls = tmp_path / "model", os.replace, []
    with files.writing_directory(target) as scratch:
        (scratch / "one").write_text("1")

    def only_the_first(source: Any, destination: Any) -> None:
        calls.append(source)
        if len(calls) > 1:
            raise OSError("no")
        plain(source, destination)

    monkeypatch.setattr(os, "replace", only_the_first)
    with pytest.raises(OSError, match="no"), files.writing_directory(target) as scratch:
        (scratch / "one").write_text("2")
    (old,) = tmp_path.glob(".model.old.*/content")
    assert (old / "one").read_text() == "1" and str(old) in files.left_behind(target)


def test_a_folder_that_a_kill_left_elsewhere_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "_exchange", lambda first, second: False)
    target = tmp_path / "model [1]"
    with files.writing_directory(target) as scratch:
        (scratch / "abnn.json").write_text("{}")
    assert files.left_behind(target) == "" == files.left_behind(tmp_path / "other")
    real, calls = os.replace, []

    def killed_after_the_first(source: Any, place: Any) -> None:
        calls.append(source)
        if len(calls) == 1:
            real(source, place)

    with monkeypatch.context() as patched:
        patched.setattr(files.os, "replace", killed_after_the_first)
        patched.setattr(files.shutil, "rmtree", lambda *_, **__: None)
        with files.writing_directory(target) as scratch:
            (scratch / "abnn.json").write_text("{}")
    (former,) = tmp_path.glob(".model*.old.*/content")
    assert not target.exists() and (former / "abnn.json").read_text() == "{}"
    hint = re.escape(f"Saving was interrupted, and what was there before is in {former}: rename that to {target}.")
    with pytest.raises(FileFormatError, match=f"is not a saved model.*{hint}"):
        read_folder(target, AttachedModel)
    with pytest.raises(FileFormatError, match=f"which does not exist.*{hint}"):
        describe(target)
    former.rename(target)
    assert files.left_behind(target) == ""


def test_only_folders_of_the_same_kind_may_be_replaced(tmp_path: Path) -> None:
    target = tmp_path / "model"
    files.check_replaceable(target, "mark.json")
    target.mkdir()
    (target / "mine.txt").write_text("mine")
    with pytest.raises(InputError) as caught:
        files.check_replaceable(target, "mark.json")
    assert str(caught.value) == (
        f"path: got {target}, which exists and is not a saved model; accepted: a new folder, or a saved model to replace."
    )
    with pytest.raises(
        InputError, match="exists and is not a set of scores; accepted: a new folder, or a set of scores to rep"
    ):
        files.check_replaceable(target, "mark.json", "a set of scores")
    (target / "mark.json").write_text("{}")
    files.check_replaceable(target, "mark.json")
    with pytest.raises(InputError, match="is not a saved model"):
        files.check_replaceable(target / "mine.txt", "mark.json")


def test_places_where_nothing_can_be_written(tmp_path: Path) -> None:
    files.check_writable("--output", tmp_path / "new" / "deep" / "model")
    assert not (tmp_path / "new").exists()
    (tmp_path / "file").write_text("mine")
    with pytest.raises(InputError, match=r"--output: got .*file is a file; accepted: a place in a folder of yours"):
        files.check_writable("--output", tmp_path / "file" / "model")
    with pytest.raises(InputError, match=r"file is a file"):
        files.check_writable("--output", tmp_path / "file", folder=True)
    with pytest.raises(InputError, match=r"which is a folder; accepted: a file, new or to replace"):
        files.check_writable("--output", tmp_path)
    with pytest.raises(InputError, match="which is no ordinary file"):
        files.check_writable("--output", Path(os.devnull))
    files.check_writable("--output", tmp_path / "file")
    files.check_writable("--output", tmp_path, folder=True)
    assert list(tmp_path.iterdir()) == [tmp_path / "file"] and (tmp_path / "file").read_text() == "mine"


@pytest.mark.parametrize("folder", [True, False])
def test_behind_a_link_the_place_it_leads_to_must_be_writable(tmp_path: Path, folder: bool) -> None:
    (tmp_path / "file").write_text("mine")
    (tmp_path / "nowhere").symlink_to(tmp_path / "file" / "deep" / "model")
    with pytest.raises(InputError, match=r"--output: got .*nowhere, where .*file is a file; accepted: a place"):
        files.check_writable("--output", tmp_path / "nowhere", folder)
    (tmp_path / "new").symlink_to(tmp_path / "later" / "model")
    files.check_writable("--output", tmp_path / "new", folder)
    assert not (tmp_path / "later").exists()


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="a folder where not even root may write")
@pytest.mark.parametrize("folder", [True, False])
def test_folders_of_nobody(folder: bool) -> None:
    with pytest.raises(InputError, match=r"where /proc cannot be written to \(.+\)"):
        files.check_writable("--output", Path("/proc/new"), folder)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_folders_of_others(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(InputError, match="cannot be written to"):
        files.check_writable("--output", tmp_path / "model")


def test_walks_follow_links_but_not_in_circles(tmp_path: Path) -> None:
    """In the order of os.walk. Two folders that lead to each other, and one that leads to itself, come to an end."""
    root = tmp_path / "root"
    for name in ("b/c", "a", ".hidden"):
        (root / name).mkdir(parents=True)
    for name in ("b/c/2", "b/1", "a/3", "a/.4", ".hidden/5", "0"):
        (root / name).write_text("")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "6").write_text("")
    links = {"z": tmp_path / "elsewhere", "up": root, "a/to b": root / "b", "b/to a": root / "a", "nowhere": root / "9"}
    for name, end in (*links.items(), ("itself", root / "itself")):
        (root / name).symlink_to(end)
    expected = [
        *((".", ["0", "itself", "nowhere"]), ("a", ["3"]), ("a/to b", ["1"]), ("a/to b/c", ["2"]), ("b", ["1"])),
        *(("b/c", ["2"]), ("b/to a", ["3"]), ("z", ["6"])),
    ]
    places = [(os.path.relpath(place, root), names) for place, names in files.walk(str(root), ".")]
    assert places == expected
    assert [names for _, names in files.walk(os.fsencode(root), b".", b"b")][1:] == [[b"3"], [b"1"], [b"2"], [b"6"]]


def test_walks_ask_for_no_file_by_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a million images on a network each question takes longer than all of the listing."""
    for name in "abc":
        (tmp_path / name).write_text("")
    asked: list[str] = []
    for name in ("stat", "lstat"):
        own = getattr(os, name)
        monkeypatch.setattr(
            os, name, lambda path, *args, own=own, **more: (asked.append(str(path)), own(path, *args, **more))[1]
        )
    assert list(files.walk(str(tmp_path))) == [(str(tmp_path), ["a", "b", "c"])]
    assert not {Path(each).name for each in asked} & {"a", "b", "c"}


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_walk_leaves_out_no_folder_unsaid(tmp_path: Path) -> None:
    (tmp_path / "closed").mkdir(mode=0)
    with pytest.raises(PermissionError):
        list(files.walk(str(tmp_path)))
