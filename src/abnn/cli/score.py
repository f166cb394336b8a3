"""``abnn score``: millions of inputs into a table of Parquet files, on one machine or many."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from abnn.cli import _common as common

INPUT = "A folder of images or of Parquet files, a Parquet file, or a text file with one name per line."


@dataclass(frozen=True, kw_only=True)
class ScoreRequest:
    model: common.ModelFolder
    input: Annotated[str, Argument(metavar="INPUT", help=INPUT)]
    output: Annotated[Path, Argument(help="Folder for the results; a job that was stopped goes on from there.")]
    column: Annotated[str | None, Option(help="Of Parquet files: what to score; default: the one that fits.")] = None
    id_column: Annotated[str | None, Option(help="Of Parquet files: what names an input; default: FILE:ROW.")] = None
    tokenizer: Annotated[Path | None, Option(help="Folder of a tokenizer: the inputs are texts.")] = None
    ray: Annotated[str | None, Option(metavar="ADDRESS", help="A Ray cluster; default: this machine.")] = None
    workers: Annotated[int | None, Option(min=1, help="Default: one for each GPU, or for each core.")] = None
    size: Annotated[int, Option(min=1, help="Inputs in a shard, which is one file of the results.")] = 1000
    batch_size: common.BatchSize = 64
    draws: common.Draws = None
    seed: common.DrawSeed = None
    device: Annotated[str, Option(help='"auto", "cpu" or "cuda".')] = "auto"
    backbone: common.Backbone = None
    weights: common.Weights = None
    quiet: common.Quiet = False


@common.command
def score(request: ScoreRequest) -> None:
    """Score many inputs, each exactly once, into Parquet files; goes on where it stopped.

    Exit status: 0 all is scored, whatever the verdicts are; 2 an error.
    """
    from abnn.batch.job import ScoreConfig
    from abnn.batch.job import score as run

    own = {name: value for name, value in vars(request).items() if name not in ("model", "input", "output", "quiet")}
    paths = {name: None if own[name] is None else str(own[name]) for name in ("tokenizer", "weights")}
    config = ScoreConfig(**{**own, **paths})
    summary = run(common.find_model(request.model), request.input, request.output, config, progress=not request.quiet)
    words = {"accept": "accepted", "notice": "noticed", "reject": "rejected"}
    parts = [f"{summary['verdicts'].get(verdict, 0):,} {word}" for verdict, word in words.items()]
    parts = (parts if summary["verdicts"] else []) + [f"{summary['errors']:,} could not be read"]
    common.say(f"{summary['inputs']:,} inputs: {', '.join(parts)}")
    common.say(f"Results: {request.output}")
    drift = summary["drift"]
    if drift is not None and drift["alarmed_at"] is not None:
        promise = "the promised shares of verdicts do not hold for such inputs"
        common.say(f"abnn: drift: the scores are not as in calibration; {promise}.", warning=True)
