"""Build the sdist and the wheel, install them into fresh environments, and run the commands of README and quick start there.

    python .ci/release-check.py                      every Python from 3.10 to 3.13 that this machine has
    python .ci/release-check.py --python /usr/bin/python3.12 --record results/release/checks.json
    python .ci/release-check.py --build              nothing but the build: what is in sdist and wheel, and what they say of themselves

For each Python a stranger's script is made of the quick start's text, line by line, and runs in an empty folder and without anything
of this repository but the wheel. Then `abnn demo` and the other commands of the README run in the environment that it has left, and
it exports the model of the quick start. Three more environments are made by uv: one by the lines of the page about installing, one
with the sdist, and one without torch, which runs the exported model. With --record, what happened is put into that file, beside the
other Pythons there, and into the table of docs/how-to/install.md. Caches of pip and uv are not used.
"""

from __future__ import annotations

import argparse
import email
import json
import os
import platform
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from website.blocks import blocks, commands

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

VERSIONS = ("3.10", "3.11", "3.12", "3.13")
PAGE = ROOT / "docs" / "how-to" / "install.md"
VERDICTS = ("accept", "notice", "reject")


def find_pythons() -> list[Path]:
    """Return one interpreter for each version: on the path, of pyenv, or of uv."""
    found = []
    for version in VERSIONS:
        places = [
            shutil.which(f"python{version}"),
            *sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python")),
        ]
        uv = shutil.which("uv")
        if uv:
            places.append(
                subprocess.run(
                    [uv, "python", "find", version], check=False, capture_output=True, text=True
                ).stdout.strip()
            )
        for place in filter(None, map(str, places)):
            said = subprocess.run(
                [place, "-c", "import sys; print(sys.version)"], check=False, capture_output=True, text=True
            )
            if said.returncode == 0 and said.stdout.startswith(f"{version}."):
                found.append(Path(place))
                break
    return found


def run(command: list[str] | str, folder: Path, **environment: str) -> str:
    """Run a command in a folder, with nothing of this repository in its environment, and return what it prints."""
    clean = {
        name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV", "PYENV_VERSION")
    }
    shell = ["bash", "-c", command] if isinstance(command, str) else command
    done = subprocess.run(shell, cwd=folder, env=clean | environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"{command}\nended with {done.returncode}:\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}")
    return done.stdout


def check_contents(dist: Path) -> str:
    """Compare what is in sdist and wheel with the repository; return a line about it."""
    tracked = subprocess.run(["git", "ls-files", "src/abnn"], cwd=ROOT, capture_output=True, text=True, check=True)
    files = {name.removeprefix("src/") for name in tracked.stdout.split("\n") if name}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    with zipfile.ZipFile(next(dist.glob("*.whl"))) as wheel:
        inside = {name for name in wheel.namelist() if ".dist-info/" not in name}
        (about,) = (name.removesuffix("METADATA") for name in wheel.namelist() if name.endswith("/METADATA"))
        said = email.message_from_bytes(wheel.read(f"{about}METADATA"))
        assert inside == files, f"only in one of wheel and repository: {sorted(inside ^ files)}"
        assert b"abnn = abnn.cli:main" in wheel.read(f"{about}entry_points.txt")
        assert any(name.endswith("/LICENSE") for name in wheel.namelist())
    assert set(said.get_all("Provides-Extra", [])) == set(project["optional-dependencies"])
    assert said["Requires-Python"] == project["requires-python"]
    assert said.get_payload(decode=True).decode() == (ROOT / "README.md").read_text(), (
        "the description is not the README"
    )
    with tarfile.open(next(dist.glob("*.tar.gz"))) as sdist:
        names = {name.partition("/")[2] for name in sdist.getnames()}
    missing = {
        "pyproject.toml",
        "README.md",
        "LICENSE",
        "tests/test_package.py",
        *(f"src/{name}" for name in files),
    } - names
    assert not missing, f"not in the sdist: {sorted(missing)}"
    return f"abnn {said['Version']}: {len(files)} files in the wheel, all of them in the sdist"


def build(folder: Path) -> Path:
    """Build the sdist, and the wheel out of the sdist, as installers do; return the folder with both."""
    dist = folder / "dist"
    run([sys.executable, "-m", "venv", "builder"], folder)
    run(["builder/bin/pip", "install", "--quiet", "hatchling", "uv"], folder)
    run([str(folder / "builder/bin/python"), "-m", "hatchling", "build", "-d", str(dist), "-t", "sdist"], ROOT)
    sdist = next(dist.glob("*.tar.gz"))
    run(["builder/bin/pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(dist), str(sdist)], folder)
    return dist


def strangers_script(page: Path) -> str:
    """Return the text of a page as one script: programs are saved under their titles, lines for the shell are run."""
    lines = ["set -e"]
    for block in blocks(page):
        if block.title:
            lines.append(f"cat > {block.title} <<'END OF FILE'\n{block.code}END OF FILE")
        elif block.language == "bash":
            for line in commands(block):  # 10 and 11 are verdicts, not errors
                lines.append(f"{line} || test $? -ge 10" if line.startswith("abnn predict") else line)
    return "\n".join(lines)


def check(python: Path, dist: Path, folder: Path) -> dict[str, Any]:
    """Run the quick start and the README with one interpreter; return what happened."""
    folder.mkdir()
    (folder / "bin").mkdir()
    (folder / "bin" / "python").symlink_to(python)
    stranger = folder / "stranger"
    stranger.mkdir()
    import sklearn.datasets

    photo = Path(sklearn.datasets.__file__).parent / "images" / "flower.jpg"
    shutil.copy(photo, stranger / "photo.jpg")
    environment = {"PATH": f"{folder / 'bin'}:{os.environ['PATH']}", "PIP_FIND_LINKS": _links(dist), "PIP_QUIET": "1"}
    environment["PIP_NO_CACHE_DIR"] = "1"
    started = time.perf_counter()
    said = run(strangers_script(ROOT / "docs" / "quickstart.md"), stranger, **environment)
    seconds = time.perf_counter() - started
    last = said.strip().splitlines()[-1].split()
    assert last[0] == "photo.jpg" and last[-1] in VERDICTS, said
    own = stranger / "my-env" / "bin"
    script = "import sys, torch, abnn; print(sys.version.split()[0], torch.__version__, abnn.__version__)"
    version, torch_version, own_version = run([str(own / "python"), "-c", script], stranger).split()
    run([str(own / "pip"), "install", "abnn[export,serve]"], stranger, **environment)
    demo = run([str(own / "abnn"), "demo"], stranger)
    assert "Model: demo/model" in demo, demo
    first, *_ = run(f"{own / 'abnn'} predict demo/model photo.jpg --format jsonl --exit-zero", stranger).splitlines()
    run(f"{own / 'abnn'} predict demo/model photo.jpg --ink --exit-zero", stranger)
    serving = f"timeout --signal INT 30 {own / 'abnn'} serve --demo --port 0 || test $? -eq 124"
    assert "Serving" in run(serving, stranger)
    run(f"{own / 'abnn'} export my-model exported --backbone reader:build", stranger)
    shutil.rmtree(own.parent)  # with torch, several GB
    return {
        "python": version,
        "torch": torch_version,
        "abnn": own_version,
        "quick_start": last[-1],
        "quick_start_seconds": round(seconds),
        "readme": json.loads(first)["verdict"],
        **check_uv(python, dist, stranger),
    }


def _links(dist: Path) -> str:
    return " ".join(filter(None, [str(dist), os.environ.get("PIP_FIND_LINKS", "")]))


def check_uv(python: Path, dist: Path, folder: Path) -> dict[str, Any]:
    """Three environments that uv makes: by the lines of the page about installing, of the sdist, and for exported models, without torch."""
    environment = {
        "PATH": f"{dist.parent / 'builder' / 'bin'}:{os.environ['PATH']}",
        "UV_FIND_LINKS": _links(dist).replace(" ", ","),
        "UV_NO_CACHE": "1",
        "UV_INDEX_STRATEGY": "unsafe-best-match",
    }
    with_python = f"uv venv --python {python}"  # never as a variable: uv would install into that Python itself
    lines = commands(next(block for block in blocks(PAGE) if block.code.startswith("uv venv")))
    lines = [line.replace("uv venv", with_python) for line in lines]
    script = "import torch; print(torch.__version__)"
    with_torch = run(
        "\n".join(["set -e", *lines, "abnn --version", f"python -c '{script}'"]), folder, **environment
    ).split()
    shutil.rmtree(folder / "my-env")
    sdist = next(dist.glob("*.tar.gz"))
    lines = ["set -e", f"{with_python} small", ". small/bin/activate", f"uv pip install {sdist}", "abnn --version"]
    from_sdist = run("\n".join(lines), folder, **environment).split()[-1]
    lines = [
        "set -e",
        ". small/bin/activate",
        f"uv pip install --reinstall-package abnn 'abnn[onnx] @ {next(dist.glob('*.whl'))}'",
    ]
    lines += [
        "if python -c 'import torch' 2> no-torch.txt; then exit 1; fi",
        "abnn predict exported photo.jpg --format jsonl --exit-zero",
    ]
    first = json.loads(run("\n".join(lines), folder, **environment).strip().splitlines()[-1])
    return {"uv": with_torch[-2], "uv_torch": with_torch[-1], "sdist": from_sdist, "without_torch": first["verdict"]}


def table(record: dict[str, Any]) -> str:
    rows = [
        "| Python | torch | quick start ends with | README: a photograph | from the sdist | with uv | exported, without torch |",
        "|---|---|---|---|---|---|---|",
    ]
    rows += [
        f"| {each['python']} | {each['torch']} | {each['quick_start']} | {each['readme']} | abnn {each['sdist']} "
        f"| abnn {each['uv']}, torch {each['uv_torch']} | {each['without_torch']} |"
        for each in record["environments"]
    ]
    text = f"abnn {record['abnn']}, {record['platform']}. The photograph is the flower that scikit-learn ships; the models read digits."
    return "\n".join(["<!-- abnn:table release -->", "", *rows, "", text, "", "<!-- /abnn:table -->"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--python", type=Path, action="append", help="an interpreter; default: all from 3.10 to 3.13")
    parser.add_argument("--record", type=Path, help="write what happened to this file, and into docs/how-to/install.md")
    parser.add_argument("--build", action="store_true", help="build and look inside, install nothing")
    options = parser.parse_args()
    pythons = options.python or find_pythons()
    environments = []
    with tempfile.TemporaryDirectory(prefix="abnn-release.") as name:
        folder = Path(name)
        dist = build(folder)
        print(check_contents(dist), flush=True)
        if options.build:
            return
        for number, python in enumerate(pythons):
            environments.append(check(python, dist, folder / str(number)))
            print(environments[-1], flush=True)
            shutil.rmtree(folder / str(number))
    if options.record:
        write(environments, options.record)


def write(environments: list[dict[str, Any]], target: Path) -> None:
    """Put what happened beside what is in the record of other Pythons, and into the page about installing."""
    commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False)
    code, now = commit.stdout.strip(), datetime.now(timezone.utc).isoformat(timespec="seconds")
    earlier = json.loads(target.read_text())["environments"] if target.exists() else []
    kept = {each["python"]: each for each in earlier} | {
        each["python"]: each | {"code": code, "written": now} for each in environments
    }
    record = {
        "abnn": environments[-1]["abnn"],
        "platform": f"{platform.system()} {platform.machine()}",
        "environments": [kept[version] for version in sorted(kept)],
    }
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(json.dumps(record, indent=1) + "\n")
    before, _, rest = PAGE.read_text().partition("<!-- abnn:table release -->")
    PAGE.write_text(before + table(record) + rest.partition("<!-- /abnn:table -->")[2])


if __name__ == "__main__":
    main()
