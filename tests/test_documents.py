"""Documents are short, easy to read and complete, and what they point to is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from website.hooks import INCLUDED, ROOT, api_pages, command_names, nav_pages

DOCUMENTS = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), ROOT / "research" / "README.md"]
EASY = [ROOT / "README.md", ROOT / "docs" / "quickstart.md"]


def prose_of(document: Path) -> str:
    """The text without code, tables, titles, comments and addresses."""
    text = re.sub(r"^ *```.*?^ *```$|<!--.*?-->", "", document.read_text(), flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"^(#|\||!\[).*$", "", text, flags=re.MULTILINE)
    return re.sub(r"\]\([^)]*\)", "]", text)


def paragraphs(document: Path) -> list[str]:
    """Blocks of prose, each item of a list by itself."""
    return [block.strip() for block in re.split(r"\n\s*\n|\n(?=\* |\d+\. )", prose_of(document)) if block.strip()]


def sentences(document: Path) -> list[str]:
    found = [
        each for block in paragraphs(document) for each in re.split(r"(?<=[.!?:])[*)\"]*\s+|·", " ".join(block.split()))
    ]
    return [each for each in found if len(each.split()) > 1]


def test_the_readme_fits_on_a_page() -> None:
    text = (ROOT / "README.md").read_text()
    assert len(text.splitlines()) <= 100
    assert text.index("make demo") < text.index("make test") < 300
    assert text.count("<!-- abnn:table ") == 1 and len(re.findall(r"!\[.+?\]\(", text)) == 1


@pytest.mark.parametrize("document", EASY, ids=lambda path: path.name)
def test_what_is_read_first_is_easy_to_read(document: Path) -> None:
    words = [len(sentence.split()) for sentence in sentences(document)]
    assert sum(words) / len(words) < 18
    assert [block for block in paragraphs(document) if len(block.splitlines()) > 5] == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(document: Path) -> None:
    made = {
        ROOT / "docs" / page for page in (*api_pages(), *(f"reference/commands/{name}.md" for name in command_names()))
    }
    made |= {page.with_suffix(".md") for page in (ROOT / "docs" / "tutorials").glob("*.py")}
    links = [link.partition("#")[0] for link in re.findall(r"\]\(([^)\s]+)\)", document.read_text())]
    local = [link for link in links if link and not re.match(r"https?:|mailto:", link)]
    targets = {link: document.parent / link for link in local}
    assert [link for link, path in targets.items() if not path.exists() and path.resolve() not in made] == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_lists_and_tables_follow_an_empty_line(document: Path) -> None:
    """Otherwise the site shows them as a part of the paragraph before them."""
    text = re.sub(r"^ *```.*?^ *```$", "", document.read_text(), flags=re.DOTALL | re.MULTILINE)
    begin = r"(?:\* |\d+\. |\||```)"
    plain = rf"(?!\s*{begin}|#|<!--|\s*$|  )\S.*"
    assert re.findall(rf"^{plain}\n(?=\* |1\. |\|)(.*)$", text, flags=re.MULTILINE) == []


def test_every_page_is_in_the_navigation() -> None:
    written = {page.relative_to(ROOT / "docs").as_posix() for page in ROOT.glob("docs/**/*.md")}
    written |= {f"tutorials/{page.stem}.md" for page in ROOT.glob("docs/tutorials/*.py")}
    assert written | set(INCLUDED.values()) == {page for page in nav_pages() if not page.startswith("reference/")}


def test_every_question_of_a_newcomer_has_a_path() -> None:
    section = (ROOT / "ARCHITECTURE.md").read_text().partition("## Where is ...?")[2].partition("\n## ")[0]
    paths = re.findall(r"\| `(src/abnn/.+?)`", section)
    assert len(paths) >= 10
    assert [path for path in paths if not (ROOT / path).exists()] == []
