"""Documents stay short where they promise it, and what they point to is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DOCUMENTS = [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), ROOT / "research" / "README.md"]


def paragraphs(text: str) -> list[str]:
    """Blocks of prose: no code, no tables, and each item of a list by itself."""
    prose = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    blocks = re.split(r"\n\s*\n|\n(?=\* )", prose)
    return [block.strip() for block in blocks if block.strip() and not block.lstrip().startswith(("|", "<!--", "#"))]


def test_the_readme_fits_on_a_page() -> None:
    text = (ROOT / "README.md").read_text()
    assert len(text.splitlines()) <= 100
    assert [block for block in paragraphs(text) if len(block.splitlines()) > 5] == []
    assert text.count("<!-- abnn:table ") == 1 and len(re.findall(r"!\[.+?\]\(", text)) == 1


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(document: Path) -> None:
    links = [link.partition("#")[0] for link in re.findall(r"\]\(([^)\s]+)\)", document.read_text())]
    local = [link for link in links if link and not re.match(r"https?:|mailto:", link)]
    assert [link for link in local if not (document.parent / link).exists()] == []


def test_every_question_of_a_newcomer_has_a_path() -> None:
    section = (ROOT / "ARCHITECTURE.md").read_text().partition("## Where is ...?")[2].partition("\n## ")[0]
    paths = re.findall(r"\| `(src/abnn/.+?)`", section)
    assert len(paths) == 10
    assert [path for path in paths if not (ROOT / path).exists()] == []
