"""What MkDocs asks while it builds the site: pages that are made, and links that leave the documents."""

from __future__ import annotations

import html
import importlib
import posixpath
import re
import sys
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "src")]

import abnn
from website.commands import command_names, command_page, commands_page
from website.tutorials import outcomes, to_markdown, to_notebook

INCLUDED = {
    "README.md": "index.md",
    "ARCHITECTURE.md": "project/architecture.md",
    "CONTRIBUTING.md": "project/contributing.md",
    "CHANGELOG.md": "project/changelog.md",
    "SECURITY.md": "project/security.md",
}
"""Documents of the repository that are pages of the site as well."""
ALONE = ("index.md", "quickstart.md")
MODULES = ("triage", "metrics", "outliers", "scores", "tasks", "data", "evaluate", "baselines", "errors")
"""Rooms that users import from directly."""
LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s]+)\)")
SECTION = re.compile(
    r'(<nav class="md-nav" data-md-level="\d" )aria-labelledby="__nav_[\d_]+_label"([^>]*>\s*)'
    r'(<label class="md-nav__title"[^>]*>\s*<span class="md-nav__icon md-icon"></span>)([^<]+)</label>'
)
CACHE = ROOT / ".cache" / "tutorials"


def on_config(config: Any) -> Any:
    """Put the pages that are made into the sections of the navigation that are named after them."""
    names = [name for name in dir(abnn) if not name.startswith("_")]
    made = {
        "Python": [{f"abnn.{name}": f"reference/api/{name}.md"} for name in names]
        + [{f"abnn.{name}": f"reference/modules/{name}.md"} for name in MODULES],
        "Commands": [{f"abnn {name}": f"reference/commands/{name}.md"} for name in command_names()],
    }
    reference = next(part["Reference"] for part in config.nav if "Reference" in part)
    for part in reference:
        for title, pages in part.items():
            if title in made:
                pages += made[title]
    return config


def on_files(files: Files, config: Any) -> Files:
    """Add the pages that no one writes: documents of the repository, the API, commands, and tutorials that have run."""
    made: dict[str, str | bytes] = {target: (ROOT / name).read_text() for name, target in INCLUDED.items()}
    made |= api_pages()
    made["reference/commands.md"] = commands_page(
        "Every command has `--help`. Each row leads to all options of one command."
    )
    made |= {f"reference/commands/{name}.md": command_page(name) for name in command_names()}
    tutorials = sorted((ROOT / "docs" / "tutorials").glob("*.py"))
    for tutorial, cells in zip(tutorials, outcomes(tutorials, CACHE), strict=True):
        page, pictures = to_markdown(cells, tutorial.stem)
        made[f"tutorials/{tutorial.stem}.md"] = page
        made[f"tutorials/{tutorial.stem}.ipynb"] = to_notebook(cells)
        made |= {f"tutorials/{name}": picture for name, picture in pictures.items()}
    for target, content in made.items():
        files.append(File.generated(config, target, content=content))
    return files


def nav_pages() -> set[str]:
    """Return the pages that the navigation names."""
    return set(re.findall(r"^ +- (?:[^:\n]+: )?(\S+\.md)$", (ROOT / "mkdocs.yml").read_text(), flags=re.MULTILINE))


def api_pages() -> dict[str, str]:
    """Return a page for every public name and for every room that users import from."""
    names = [name for name in dir(abnn) if not name.startswith("_")]
    pages = {f"reference/api/{name}.md": f"::: abnn.{name}\n" for name in names}
    lines = ["# Python", "", "Everything that `import abnn` offers. `abnn.__version__` is the version.", ""]
    lines += ["| name | what it is |", "|---|---|"]
    lines += [f"| [`abnn.{name}`](api/{name}.md) | {_first_line(getattr(abnn, name))} |" for name in names]
    lines += ["", "## Modules", "", "| module | what it has |", "|---|---|"]
    for name in MODULES:
        module = importlib.import_module(f"abnn.{name}")
        shown = "\n".join(f"        - {each}" for each in _public(module))
        options = f"    options:\n      members:\n{shown}\n"
        pages[f"reference/modules/{name}.md"] = f"::: abnn.{name}\n{options}"
        lines.append(f"| [`abnn.{name}`](modules/{name}.md) | {_first_line(module)} |")
    pages["reference/api.md"] = "\n".join(lines) + "\n"
    return pages


def _public(module: Any) -> list[str]:
    names = getattr(module, "__all__", None) or [
        name for name, value in vars(module).items() if getattr(value, "__module__", "") == module.__name__
    ]
    return [name for name in names if not name.startswith("_")]


def _first_line(thing: Any) -> str:
    from website.docstrings import to_markdown as docstring_to_markdown

    return docstring_to_markdown((thing.__doc__ or "").strip().split("\n")[0]).replace("|", "\\|")


def on_page_markdown(markdown: str, page: Page, config: Any, files: Files) -> str:
    """Let links to documents of the repository lead to their pages; of links to other files, keep the text."""
    source = page.file.src_uri
    inside = {target: name for name, target in INCLUDED.items()}
    start = posixpath.dirname(inside.get(source, f"docs/{source}"))

    def rewrite(match: re.Match[str]) -> str:
        picture, text, (place, mark, anchor) = match.group(1), match.group(2), match.group(3).partition("#")
        if not place or re.match(r"[a-z]+:", place):
            return match.group(0)
        path = posixpath.normpath(posixpath.join(start, place))
        target = INCLUDED.get(path, path.removeprefix("docs/") if path.startswith("docs/") else None)
        if target is None or files.get_file_from_path(target) is None:
            if path.startswith("docs/") and not (ROOT / path).exists():
                return match.group(0)  # MkDocs says that it is broken
            return text
        return f"{picture}[{text}]({posixpath.relpath(target, posixpath.dirname(source) or '.')}{mark}{anchor})"

    return _outside_code(markdown, rewrite)


def _outside_code(markdown: str, rewrite: Any) -> str:
    """Apply ``rewrite`` to every link that is not inside of a block of code."""
    pieces = re.split(r"(^```.*?^```)", markdown, flags=re.MULTILINE | re.DOTALL)
    return "".join(piece if index % 2 else LINK.sub(rewrite, piece) for index, piece in enumerate(pieces))


def on_page_context(context: Any, page: Page, config: Any, nav: Any) -> Any:
    """Give pages that are alone in their section the width of the navigation, which would be empty."""
    if page.file.src_uri in ALONE:
        page.meta["hide"] = ["navigation"]
    return context


def on_post_page(output: str, page: Page, config: Any) -> str:
    """Name what the theme leaves without a name: its search, and sections of the navigation that have a page of their own."""
    output = output.replace(
        'data-md-component="search" role="dialog"', 'data-md-component="search" role="dialog" aria-label="Search"'
    )
    return SECTION.sub(
        lambda match: f'{match[1]}aria-label="{match[4].strip()}"{match[2]}{match[3]}{match[4]}</label>', output
    )


def on_post_build(config: Any) -> None:
    """Fail where a page leads to a file or a place of the site that is not there."""
    if broken := broken_links(Path(config.site_dir)):
        raise PluginError("links that lead nowhere:\n" + "\n".join(broken))


def broken_links(site: Path) -> list[str]:
    """Return every link within a site that leads nowhere, as "page: link"."""
    texts = {page.resolve(): page.read_text() for page in site.rglob("*.html") if page.name != "404.html"}
    places = {page: set(re.findall(r'\b(?:id|name)="?([^"\s>]+)', text)) for page, text in texts.items()}
    broken = []
    for page, text in texts.items():
        for link in sorted(set(re.findall(r'\b(?:href|src)="?([^"\s>]+)', text))):
            path, _, place = html.unescape(unquote(link)).partition("#")
            if re.match(r"[a-z]+:|//", path):
                continue
            target = (page.parent / path.partition("?")[0]).resolve() if path else page
            target = target / "index.html" if target.is_dir() else target
            if not target.exists() or (place and target in places and place not in places[target]):
                broken.append(f"{page.relative_to(site.resolve())}: {link}")
    return broken
