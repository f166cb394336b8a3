from pathlib import Path

import pytest

from abnn.errors import FileFormatError, InputError
from research.tables import update_between_markers

DOCUMENT = "# Title\n<!-- abnn:table a -->\nold\n<!-- /abnn:table -->\nbetween ±\n<!-- abnn:table b --><!-- /abnn:table -->\nend"


def test_update_between_markers(tmp_path: Path):
    path = tmp_path / "README.md"
    path.write_text(DOCUMENT)
    assert update_between_markers(path, "b", "| x |\n") is True
    assert path.read_text() == DOCUMENT.replace("b --><!--", "b -->\n\n| x |\n\n<!--")
    assert update_between_markers(path, "a", "new\n") is True
    assert path.read_text().startswith("# Title\n<!-- abnn:table a -->\n\nnew\n\n<!-- /abnn:table -->\nbetween ±\n")
    before = path.stat().st_mtime_ns
    assert update_between_markers(path, "a", "new\n") is False
    assert path.stat().st_mtime_ns == before


def test_update_keeps_line_ends(tmp_path: Path):
    path = tmp_path / "README.md"
    path.write_bytes(DOCUMENT.replace("\n", "\r\n").encode())
    update_between_markers(path, "a", "one\ntwo\n")
    assert path.read_bytes().count(b"\n") == path.read_bytes().count(b"\r\n")


@pytest.mark.parametrize(
    ("content", "marker", "message"),
    [
        (DOCUMENT, "c", "'c', 0 times.*Markers in the file: a, b"),
        ("nothing", "c", "Markers in the file: none"),
        (DOCUMENT * 2, "a", "2 times"),
        ("<!-- abnn:table a -->\nold", "a", "without an end"),
        ("<!-- abnn:table a -->\n<!-- abnn:table b -->\n<!-- /abnn:table -->", "a", "without an end"),
    ],
)
def test_missing_markers_change_nothing(tmp_path: Path, content: str, marker: str, message: str):
    path = tmp_path / "README.md"
    path.write_text(content)
    with pytest.raises(InputError, match=message):
        update_between_markers(path, marker, "text")
    assert path.read_text() == content


def test_bad_documents_are_named(tmp_path: Path):
    with pytest.raises(InputError, match="does not exist"):
        update_between_markers(tmp_path / "none.md", "a", "x")
    (tmp_path / "latin.md").write_bytes(b"\xff\xfe")
    with pytest.raises(FileFormatError, match=r"latin\.md is not UTF-8"):
        update_between_markers(tmp_path / "latin.md", "a", "x")
    with pytest.raises(InputError, match="text with a table marker"):
        update_between_markers(tmp_path / "none.md", "a", "<!-- abnn:table a -->")
