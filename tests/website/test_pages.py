"""Pages that are made: the API from docstrings, commands from the command line, tutorials from scripts."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import typer.main

import abnn
from abnn.cli import app
from website.commands import command_names, command_page, commands_page
from website.docstrings import to_markdown as docstring_to_markdown
from website.hooks import MODULES, api_pages, broken_links, on_page_markdown, on_post_page
from website.tutorials import Cell, outcome, read_cells, run_cells, to_markdown, to_notebook

SCRIPT = """# Copyright
# %% [markdown]
# # Title
#
# Text.

# %%
import matplotlib.pyplot as plt

number = 41
print("printed")
number + 1

# %%
# !echo from the shell

# %%
plt.plot([0, 1])
number = 2
"""


def test_every_public_name_has_a_page() -> None:
    pages = api_pages()
    for name in set(dir(abnn)) - {"__version__"}:
        assert pages[f"reference/api/{name}.md"].startswith(f"::: abnn.{name}\n")
        assert f"(api/{name}.md)" in pages["reference/api.md"]
    assert all(f"reference/modules/{name}.md" in pages for name in MODULES)
    assert "abnn.__version__" in pages["reference/api.md"]


@pytest.mark.parametrize("name", command_names())
def test_every_option_of_a_command_is_on_its_page(name: str) -> None:
    page = command_page(name)
    command = typer.main.get_command(app).commands[name]  # type: ignore[attr-defined]
    for parameter in command.params:
        names = (
            parameter.opts if parameter.param_type_name == "option" else [parameter.metavar or parameter.name.upper()]
        )
        assert any(each in page for each in names)
        assert parameter.help
    assert f"commands/{name}.md" in commands_page("")


def test_aligned_entries_of_a_docstring_become_a_table() -> None:
    text = (
        "Return ``x``; see :func:`abnn.fit`.\n\na, b    first\n        goes on | here\nlonger  more\n\nNo  table\nhere."
    )
    made = docstring_to_markdown(text, frozenset({"abnn.fit"}))
    assert made.split("\n\n")[0] == "Return `x`; see [`abnn.fit`][abnn.fit]."
    assert made.split("\n\n")[1] == "| | |\n|---|---|\n| `a`, `b` | first goes on \\| here |\n| `longer` | more |"
    assert made.endswith("No  table\nhere.")


def test_links_between_documents_of_the_repository_and_of_the_site() -> None:
    files = SimpleNamespace(get_file_from_path=lambda path: path if path in ("triage.md", "index.md") else None)

    def rewrite(text: str, source: str) -> str:
        return on_page_markdown(text, SimpleNamespace(file=SimpleNamespace(src_uri=source)), None, files)  # type: ignore[arg-type]

    assert rewrite("[a](docs/triage.md#b)", "index.md") == "[a](triage.md#b)"
    assert rewrite("[a](../README.md), [b](https://c.d)", "triage.md") == "[a](index.md), [b](https://c.d)"
    assert rewrite("[a](../../README.md)", "how-to/x.md") == "[a](../index.md)"
    assert rewrite("[`r`](../results/demo)\n```\n[a](b)\n```", "triage.md") == "`r`\n```\n[a](b)\n```"
    assert rewrite("[a](missing.md)", "triage.md") == "[a](missing.md)"


def test_tutorials_run_and_become_pages_and_notebooks() -> None:
    cells = read_cells(SCRIPT)
    assert [cell.kind for cell in cells] == ["markdown", "code", "code", "code"]
    run_cells(cells, {})
    assert cells[1].text == "printed\n42" and cells[2].text == "from the shell" and len(cells[3].pictures) == 1
    page, pictures = to_markdown(cells, "name")
    assert (
        page.startswith("# Title\n\nDownload")
        and "(name.ipynb)" in page
        and "```bash\necho from the shell\n```" in page
    )
    assert [*pictures] == ["name-3-0.png"] and pictures["name-3-0.png"].startswith(b"\x89PNG")
    notebook = json.loads(to_notebook(cells))
    assert notebook["cells"][2]["source"] == ["!echo from the shell"]
    assert notebook["cells"][1]["outputs"][0]["text"] == ["printed\n", "42\n"]
    assert "image/png" in notebook["cells"][3]["outputs"][0]["data"]


def test_a_tutorial_runs_once_until_it_changes(tmp_path: Path) -> None:
    script = tmp_path / "first.py"
    script.write_text('# %%\nopen("here", "w").close()\nprint("ran")\n')
    cells = outcome(script, tmp_path / "cache")
    assert cells == [Cell("code", 'open("here", "w").close()\nprint("ran")', "ran")] and not Path("here").exists()
    kept = next((tmp_path / "cache").iterdir())
    kept.write_text(kept.read_text().replace("ran", "kept"))
    assert outcome(script, tmp_path / "cache")[0].text == "kept"
    script.write_text("# %%\nraise ValueError('wrong')\n")
    with pytest.raises(RuntimeError, match="wrong"):
        outcome(script, tmp_path / "cache")


def test_links_of_the_site_that_lead_nowhere_are_found(tmp_path: Path) -> None:
    (tmp_path / "one.html").write_text(
        '<h1 id="top"></h1><a href="two.html#here">a</a><a href="https://c.d">b</a><a href="#top">c</a>'
    )
    (tmp_path / "two.html").write_text(
        '<p id="here"><a href="one.html#gone">a</a><img src="no%20picture.png"><a href=".">b</a>'
    )
    assert broken_links(tmp_path) == ["two.html: .", "two.html: no%20picture.png", "two.html: one.html#gone"]
    (tmp_path / "index.html").write_text("")
    assert "two.html: ." not in broken_links(tmp_path)


def test_parts_of_the_theme_get_names() -> None:
    section = """<nav class="md-nav" data-md-level="1" aria-labelledby="__nav_5_label" aria-expanded="false">
      <label class="md-nav__title" for="__nav_5"><span class="md-nav__icon md-icon"></span> How-to </label>"""
    page = on_post_page(f'<div data-md-component="search" role="dialog">{section}', None, None)  # type: ignore[arg-type]
    assert (
        'role="dialog" aria-label="Search">' in page and 'data-md-level="1" aria-label="How-to" aria-expanded' in page
    )
