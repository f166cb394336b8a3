"""Models on the Hugging Face Hub: a saved folder with a card about it (``card.md``), pushed and fetched by huggingface_hub.

Nothing here connects unless it is asked to by name. Tokens go to huggingface_hub and nowhere else: they are neither written nor
shown. What comes back is checked like any saved folder, file by file by its sha256, and never runs code.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from abnn.errors import AbnnError, FileFormatError, InputError, explain, import_extra
from abnn.files import read_json, templates
from abnn.store.folder import fingerprint
from abnn.store.schema import AttachedModel

CARD = "README.md"
SHARES = ("accuracy", "auroc")  # metrics of a record that a card shows, by the end of their name
FILES = (AttachedModel.FILE, *AttachedModel.PARTS, CARD)
REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", re.ASCII)


def is_repository(path: object) -> bool:
    """Return whether ``path`` is a text like "user/repo", and no file or folder of that name is there."""
    return isinstance(path, str) and REPOSITORY.fullmatch(path) is not None and not Path(path).exists()


def push(folder: Path, repository: str, private: bool | None, token: str | None) -> str:
    """Upload a saved folder as one commit, with a new repository if need be, and return its address.

    Files of an earlier model in the repository that this one lacks are removed by the same commit.
    """
    hub = import_extra("huggingface_hub", "hub")
    if not isinstance(repository, str) or not REPOSITORY.fullmatch(repository):
        raise InputError(explain("repo", repr(repository), 'a name like "user/repo"'))
    api = hub.HfApi(token=token, library_name="abnn")
    try:
        api.create_repo(repository, private=private, exist_ok=True)
        options: dict[str, Any] = {"allow_patterns": list(FILES), "delete_patterns": list(AttachedModel.PARTS)}
        options["commit_message"] = "Push a model of abnn"
        commit = api.upload_folder(repo_id=repository, folder_path=folder, **options)
    except (OSError, ValueError) as error:
        raise AbnnError(f"repo: {repository} cannot be pushed to {api.endpoint} ({_reason(error)}).") from None
    return str(commit.commit_url)


def fetch(repository: str, revision: str | None = None, token: str | None = None) -> Path:
    """Return the folder of a repository's files in the cache of huggingface_hub, fetched where they are not there yet."""
    hub = import_extra("huggingface_hub", "hub")
    try:
        options: dict[str, Any] = {"allow_patterns": list(FILES), "library_name": "abnn"}
        return Path(hub.snapshot_download(repository, revision=revision, token=token, **options))
    except (OSError, ValueError) as error:
        place = f"{repository!r}, which is no folder here and cannot be fetched from {hub.HfApi().endpoint}"
        accepted = 'a folder that model.save() wrote, or "user/repo" on the Hub'
        raise InputError(explain("path", f"{place} ({_reason(error)})", accepted)) from None


def _reason(error: Exception) -> str:
    """Return the first line of an error: the others repeat the request."""
    return f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else 'no reason given'}"


def make_card(model: Any, name: str, with_backbone: bool, records: Sequence[str | Path] = ()) -> str:
    """Return the card of a model as Markdown.

    name     what to load it by: "user/repo" or a path
    records  run records of this model, as ``abnn evaluate`` writes them, for data and metrics
    """
    runs = [_read_record(record) for record in records]
    environment = templates(Path(__file__).parent)
    environment.filters["cell"] = lambda value: " ".join(str(value).replace("|", "\\|").split())
    return environment.get_template("card.md").render(
        model=model,
        name=name,
        title=name.rstrip("/").rpartition("/")[2] or name,
        with_backbone=with_backbone,
        recipe=getattr(model.backbone, "abnn_recipe", None),
        numbers=sum(value.numel() for value in model.backbone.parameters()),
        learnt=sum(value.numel() for _, value in model.attachment_parameters()),
        fingerprint=fingerprint(model.backbone),
        names=model.extra.get("class_names"),
        triage=model.triage,
        runs=runs,
        sets={each["name"]: each for run in runs for each in run["sets"]},
    )


def _read_record(path: str | Path) -> dict[str, Any]:
    """Return a record, with the metrics to show by path."""
    record = read_json(Path(path))
    known = isinstance(record, dict) and record.get("format") == "abnn-record"
    if not known or not isinstance(record.get("metrics"), dict):
        raise FileFormatError(f"records: {path} is not a run record; pass JSON files that abnn evaluate wrote.")
    flat = dict(_flat(record["metrics"]))
    shown = {k: v for k, v in flat.items() if k.rpartition(".")[2] in SHARES or k.startswith(SHARES[0])}
    return {**record, "shown": shown}


def _flat(metrics: dict[str, Any], above: str = "") -> Iterable[tuple[str, float]]:
    """Yield numbers by path, those of other scores left out."""
    for name, value in metrics.items():
        if isinstance(value, dict):
            yield from () if name == "by_score" else _flat(value, f"{above}{name}.")
        elif isinstance(value, int | float) and math.isfinite(value):
            yield f"{above}{name}", float(value)
