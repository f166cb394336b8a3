"""Tutorials are scripts in cells. They are run when the site is built, and can be downloaded as notebooks.

A cell begins with ``# %%`` (code) or ``# %% [markdown]`` (text, as comments), as in Jupytext and many editors. A line ``# !command``
in a code cell is a line for the shell. Every tutorial runs in a process and a folder of its own.
"""

from __future__ import annotations

import ast
import base64
import contextlib
import hashlib
import io
import json
import os
import re
import resource
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

SECONDS = 180
"""Of processor time: no tutorial may take more. A machine that is busy with other work may take WAIT seconds for it."""
WAIT = 1800
CELL = re.compile(r"^# %%(.*)\n", flags=re.MULTILINE)
SHELL = "# !"


@dataclass
class Cell:
    """One cell and, once it has run, what it gave: printed text, a table as HTML, and pictures as PNG in base64."""

    kind: str
    source: str
    text: str = ""
    html: str = ""
    pictures: list[str] = field(default_factory=list)


def read_cells(script: str) -> list[Cell]:
    """Return the cells of a script; what stands before the first one does not count."""
    cells = []
    parts = CELL.split(script)[1:]
    for title, body in zip(parts[::2], parts[1::2], strict=True):
        if title.strip() == "[markdown]":
            cells.append(Cell("markdown", re.sub(r"^# ?", "", body.strip(), flags=re.MULTILINE)))
        else:
            cells.append(Cell("code", body.strip()))
    return cells


def run_cells(cells: list[Cell], scope: dict[str, Any]) -> None:
    """Run all code cells in one scope and keep what they give."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    with contextlib.suppress(ImportError):
        import pandas

        pandas.set_option("display.precision", 3)
    for cell in cells:
        if cell.kind != "code":
            continue
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            value = _run(cell.source, scope)
            if value is not None and hasattr(value, "_repr_html_"):
                cell.html = re.sub(r"\s*<style.*?</style>", "", value._repr_html_(), flags=re.DOTALL)
            elif value is not None:
                print(repr(value))
        cell.text = printed.getvalue().rstrip()
        for number in plt.get_fignums():
            picture = io.BytesIO()
            plt.figure(number).savefig(picture, dpi=110, bbox_inches="tight")
            cell.pictures.append(base64.b64encode(picture.getvalue()).decode())
        plt.close("all")


def _run(source: str, scope: dict[str, Any]) -> Any:
    """Run one cell and return the value of its last line, if that is an expression."""
    shell = [line.removeprefix(SHELL) for line in source.split("\n") if line.startswith(SHELL)]
    for command in shell:
        done = subprocess.run(
            command, shell=True, check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        print(done.stdout, end="")
    tree = ast.parse(source)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, "<tutorial>", "exec"), scope)  # noqa: S102
    if not isinstance(last, ast.Expr):
        return None
    return eval(compile(ast.Expression(last.value), "<tutorial>", "eval"), scope)


def outcomes(paths: list[Path], cache: Path) -> list[list[Cell]]:
    """Return the cells of several tutorials; as many run at once as there are processors, each with one thread."""
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return list(pool.map(lambda path: outcome(path, cache), paths))


def outcome(path: Path, cache: Path) -> list[Cell]:
    """Return the cells of a tutorial with what they gave: from the cache, if neither it nor the package has changed."""
    kept = cache / f"{path.stem}-{_fingerprint(path)}.json"
    if not kept.exists():
        cache.mkdir(parents=True, exist_ok=True)
        folders = [Path(sys.executable).parent, *os.environ["PATH"].split(os.pathsep)]
        environment = {**os.environ, "PATH": os.pathsep.join(map(str, folders)), "COLUMNS": "110", "NO_COLOR": "1"}
        environment["OMP_NUM_THREADS"] = "1"  # networks are small, and others run beside
        command = [sys.executable, "-m", "website.tutorials", str(path.resolve()), str(kept.resolve())]
        done = subprocess.run(command, env=environment, timeout=WAIT, check=False, capture_output=True, text=True)
        if done.returncode != 0:
            raise RuntimeError(f"tutorial {path}: {done.stderr[-3000:]}")
        for old in set(cache.glob(f"{path.stem}-*.json")) - {kept}:
            old.unlink()
    return [Cell(**each) for each in json.loads(kept.read_text())]


def _fingerprint(path: Path) -> str:
    root = Path(__file__).parents[1]
    digest = hashlib.sha256(metadata.version("torch").encode())
    for each in [path, Path(__file__), *sorted((root / "src").rglob("*.py"))]:
        digest.update(each.read_bytes())
    return digest.hexdigest()[:16]


def to_markdown(cells: list[Cell], name: str) -> tuple[str, dict[str, bytes]]:
    """Return the page of a tutorial that has run, and its pictures by file name."""
    parts: list[str] = []
    pictures: dict[str, bytes] = {}
    for number, cell in enumerate(cells):
        if cell.kind == "markdown":
            parts.append(cell.source)
            continue
        shell = cell.source.startswith(SHELL)
        source = cell.source.replace(SHELL, "")
        parts.append(f"```{'bash' if shell else 'python'}\n{source}\n```")
        if cell.text:
            parts.append(f"```text\n{cell.text}\n```")
        if cell.html:
            parts.append(cell.html)
        for index, picture in enumerate(cell.pictures):
            file = f"{name}-{number}-{index}.png"
            pictures[file] = base64.b64decode(picture)
            parts.append(f"![What the code above draws]({file})")
    title, _, rest = "\n\n".join(parts).partition("\n")
    downloads = f"Download this page as a [notebook]({name}.ipynb) or as a [script]({name}.py)."
    return f"{title}\n\n{downloads}\n{rest}\n", pictures


def to_notebook(cells: list[Cell]) -> str:
    """Return a notebook (nbformat 4.5) of a tutorial that has run."""
    made = []
    for number, cell in enumerate(cells):
        entry: dict[str, Any] = {"cell_type": cell.kind, "id": f"cell-{number}", "metadata": {}}
        source = "\n".join(re.sub(rf"^{SHELL}", "!", line) for line in cell.source.split("\n"))
        entry["source"] = source.splitlines(keepends=True)
        if cell.kind == "code":
            outputs: list[dict[str, Any]] = []
            if cell.text:
                text = (cell.text + "\n").splitlines(keepends=True)
                outputs.append({"output_type": "stream", "name": "stdout", "text": text})
            data: list[dict[str, Any]] = [{"text/html": [cell.html]}] if cell.html else []
            data += [{"image/png": picture} for picture in cell.pictures]
            outputs += [{"output_type": "display_data", "metadata": {}, "data": each} for each in data]
            entry |= {"execution_count": None, "outputs": outputs}
        made.append(entry)
    kernel = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}}
    return json.dumps({"nbformat": 4, "nbformat_minor": 5, "metadata": kernel, "cells": made}, indent=1)


def user_seconds() -> float:
    """Return the processor time of this process and of those that it has started."""
    return sum(resource.getrusage(who).ru_utime for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))


def main(path: str, target: str) -> None:
    """Run the tutorial ``path`` in an empty folder and write its cells to ``target``."""
    script = Path(path).read_text()
    cells = read_cells(script)
    source = str(Path(__file__).parents[1] / "src")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [source, os.environ.get("PYTHONPATH", "")]))
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        sys.path[:0] = [source, folder]
        if "transformers" in script:
            with contextlib.suppress(ImportError):
                from abnn.networks.vision import torchvision

                torchvision()  # whose operators may not fit torch, which transformers would trip over
        run_cells(cells, {"__name__": "__main__"})
        os.chdir("/")
    if (seconds := user_seconds()) > SECONDS:
        raise RuntimeError(f"took {seconds:.0f} seconds of processor time, more than {SECONDS}")
    part = Path(f"{target}.part")
    part.write_text(json.dumps([asdict(cell) for cell in cells]))
    part.rename(target)


if __name__ == "__main__":
    main(*sys.argv[1:])
