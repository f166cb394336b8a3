"""Do verdicts keep their promise?

    python -m research.triage                    the embedded digits, a minute
    python -m research.triage --mnist            MNIST, some minutes
    python -m research.triage --record FILE ...  any run records with in-distribution data
    python -m research.triage --table            what was measured; --into docs/triage.md puts it there

The digits: trains the example once, then measures without any further choice the share of good inputs not accepted over
many random calibration splits; verdicts on all three tiers, with common thresholds, thresholds per class and thresholds by
cost; false alarms of the drift monitor on streams without drift, and how soon it notices photographs among digits. For
MNIST and other records the first of these, see :mod:`research.guarantee`.
"""

from __future__ import annotations

import argparse
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from abnn.data.digits import load_digits
from abnn.demo import DRAWS, Demo, run_demo
from abnn.evaluate.provenance import provenance
from abnn.files import read_json, write_json
from abnn.triage import Costs, Triage, TriageConfig, check_guarantee, report
from abnn.triage.calibrate import choose, gather
from abnn.triage.drift import DriftMonitor
from abnn.triage.report import Row, rows_as_markdown
from research.guarantee import SHARES, SPLITS, check_records, guarantee_table, stated_table, train_on_mnist
from research.tables import update_between_markers

STREAMS, ALARM, PHOTOGRAPHS = 300, 0.05, 0.2
STREAM_LENGTH = 400


def measure(demo: Demo, seed: int, splits: int = SPLITS, streams: int = STREAMS) -> dict[str, Any]:
    """All numbers of the experiment, as JSON can hold them."""
    data = load_digits(seed)
    batches = [(data.val.x, data.val.y)]
    gathered = gather(demo.model, batches, TriageConfig(draws=DRAWS))
    held = demo.attached.scores("id")
    good = np.concatenate([gathered.good, held])
    size = len(gathered.good)
    choices = {
        "default": demo.triage,
        "with confidence 0.95": choose(gathered, TriageConfig(confidence=0.95)),
        "per class, 20 % noticed": choose(gathered, TriageConfig(noticed=0.2, rejected=0.05, per_class=True)),
        "by cost": choose(gathered, TriageConfig(costs=Costs())),
    }
    return {
        "experiment": "triage",
        "model": demo.attached.name,
        "score": demo.attached.score,
        "config": demo.attached.config,
        "seconds": demo.attached.seconds,
        "seed": seed,
        "data": {"name": "digits", "sha256": data.hash(), "calibration": size, "good": len(good)},
        "guarantee": [asdict(check_guarantee(good, share, splits, seed, size)) for share in SHARES],
        "verdicts": {name: _verdicts(each, demo) for name, each in choices.items()},
        "drift": measure_drift(good, demo.attached.scores("full"), size, streams, seed),
        **provenance(),
    }


def measure_drift(good: np.ndarray, far: np.ndarray, size: int, streams: int, seed: int) -> dict[str, Any]:
    """False alarms on random orders of good scores, and inputs until the alarm with photographs mixed in.

    A stream without drift is what a random order of the good scores leaves after calibration; in a stream with drift, each
    score is one of a photograph with probability ``PHOTOGRAPHS``.
    """
    rng = np.random.default_rng(seed)
    false, delays = 0, []
    for stream in range(streams):
        order = rng.permutation(good)
        monitor = DriftMonitor.from_scores(order[:size], ALARM, stream)
        is_far = rng.random(STREAM_LENGTH) < PHOTOGRAPHS
        drifted = np.where(is_far, rng.choice(far, STREAM_LENGTH), rng.choice(order[size:], STREAM_LENGTH))
        false += monitor.update(order[size:])
        monitor.reset()
        monitor.update(drifted)
        delays.append(monitor.alarmed_at if monitor.alarmed_at is not None else np.inf)
    return {
        "alarm": ALARM,
        "streams": streams,
        "false_alarms": {"share": false / streams, "inputs": len(good) - size},
        "photographs": {
            "share": PHOTOGRAPHS,
            "noticed": float(np.isfinite(delays).mean()),
            "inputs_until_alarm": {f"{q} %": _finite(np.quantile(delays, q / 100, method="lower")) for q in (50, 90)},
        },
    }


def _finite(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None


def _verdicts(triage: Triage, demo: Demo) -> dict[str, Any]:
    rows = report(triage, demo.attached).sets
    kept = ("notice", "reject", "noticed", "rejected", "confidence", "by_class", "inputs")
    return {"triage": {name: getattr(triage, name) for name in kept}, "sets": [asdict(row) for row in rows]}


def tables(folder: Path) -> dict[str, str]:
    """What a document shows, by the marker of its place: all checks, and of the digits, seed 0, verdicts and drift."""
    found = {"guarantee": guarantee_table(folder), "stated": stated_table(folder)}
    if (folder / "digits-seed0.json").exists():
        digits = read_json(folder / "digits-seed0.json")
        rows = [Row(**each) for each in digits["verdicts"]["default"]["sets"]]
        found = {"verdicts": rows_as_markdown(rows), **found, "drift": _drift_text(digits["drift"])}
    return found


def _drift_text(drift: dict[str, Any]) -> str:
    false, mixed = drift["false_alarms"], drift["photographs"]
    when = [f"{share} within {n:.0f} inputs" for share, n in mixed["inputs_until_alarm"].items() if n is not None]
    flagged = f"{100 * mixed['noticed']:.1f} % of streams of {STREAM_LENGTH} were flagged"
    return (
        f"On the embedded digits with `alarm={drift['alarm']}`, {drift['streams']} streams each: false alarms in "
        f"{100 * false['share']:.1f} % of streams of {false['inputs']} digits;\nwith photographs as "
        f"{100 * mixed['share']:.0f} % of the inputs {', '.join([flagged, *when])}.\n"
    )


def main(arguments: list[str] | None = None) -> None:
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser("python -m research.triage", description=__doc__, formatter_class=form)
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--mnist", action="store_true", help="train on a part of MNIST and check its test images")
    what.add_argument("--record", type=Path, nargs="+", metavar="FILE", help="check these run records")
    what.add_argument("--table", action="store_true", help="only render the table of what was checked")
    parser.add_argument("--output", type=Path, default=Path("results/triage"), help="folder for the checks")
    parser.add_argument("--records", type=Path, default=Path("results"), help="folder for the record of --mnist")
    parser.add_argument("--data-root", type=Path, help="folder of <dataset>/<split>.npz; default: $ABNN_DATA")
    parser.add_argument("--into", type=Path, metavar="FILE", help="put the table of all checks into this document")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--quiet", action="store_true")
    options = parser.parse_args(arguments)
    written: list[Path] = []
    if options.mnist:
        record = train_on_mnist(options.data_root, options.seed, options.records, progress=not options.quiet)
        written = check_records([record], options.output)
    elif options.record:
        written = check_records(options.record, options.output)
    elif not options.table:
        written = [_digits(options.seed, options.output, not options.quiet)]
    for path in written:
        print(path)
        for each in read_json(path)["guarantee"]:
            print(f"  at most {each['bound']:.0%} promised: {each['mean']:.2%} ± {each['standard_error']:.2%}")
    for marker, text in tables(options.output).items():
        print(text, end="")
        if options.into is not None:
            update_between_markers(options.into, marker, text)


def _digits(seed: int, output: Path, progress: bool) -> Path:
    demo = run_demo(seed, progress=progress)
    path = output / f"digits-seed{seed}.json"
    write_json(path, measure(demo, seed))
    return path


if __name__ == "__main__":
    main()
