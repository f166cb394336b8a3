"""Where records are: names of experiments and models as names of files."""

from __future__ import annotations

import hashlib
import re
import unicodedata
from pathlib import Path


def record_path(directory: str | Path, experiment: str, name: str, seed: int) -> Path:
    """Where the record of a run is, for anyone who knows what the run was."""
    return Path(directory) / slug(experiment) / f"{slug(name)}-seed{seed}.json"


def slug(name: str) -> str:
    """Lower-case ASCII for file names; where letters are lost, a hash of the whole name keeps names apart."""
    plain = unicodedata.normalize("NFKD", name)
    short = re.sub(r"[^a-z0-9]+", "-", plain.lower()).strip("-")
    lost = any(character.isalnum() and not character.isascii() for character in plain)
    if short and not lost:
        return short
    return f"{short or 'run'}-{hashlib.sha256(name.encode(errors='surrogatepass')).hexdigest()[:8]}"
