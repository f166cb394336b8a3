"""Do verdicts keep their promise?

    python -m research.triage                    the embedded digits, a minute
    python -m research.triage --mnist            MNIST, some minutes
    python -m research.triage --record FILE ...  any run records with in-distribution data
    python -m research.triage --promise          tied scores and batches of any size, see research.promise; a minute
    python -m research.triage --drift            false alarms of single calibration sets, see research.drift; minutes
    python -m research.triage --table            what was measured; --into docs/triage.md puts it there

The digits: trains the example once, then measures without any further choice the share of good inputs not accepted over
many random calibration splits; verdicts on all three tiers, with common thresholds, thresholds per class and thresholds by
cost; false alarms of the drift monitor on streams without drift, and how soon it notices photographs among digits. For
MNIST and other records the first of these.

A record keeps the score of every input that its model was not fitted on. Splitting the in-distribution ones at random into
calibration and test again and again, and counting how many of the test part are not accepted, needs no model any more: so
the check works on every record, from any machine.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, TensorDataset

from abnn.baselines import make_method, train_method
from abnn.data import InputForm, Source, open_named
from abnn.data.digits import load_digits
from abnn.demo.digits import Demo, run_demo
from abnn.errors import InputError, explain
from abnn.evaluate.collect import evaluate_set
from abnn.evaluate.evaluation import Evaluation
from abnn.evaluate.provenance import provenance
from abnn.evaluate.records import Record, read_record, slug, write_record
from abnn.files import read_json, write_json
from abnn.metrics.calibration import calibration
from abnn.triage import Costs, Triage, TriageConfig, check_guarantee, report
from abnn.triage.calibrate import choose, gather
from abnn.triage.drift import DriftMonitor
from abnn.triage.report import Row
from abnn.triage.statements import choose_temperature, rescale
from research.drift import measure_resets, resets_table
from research.metrics import summarise
from research.promise import measure_promise, promise_table
from research.records import rounded
from research.tables import markdown_table, update_between_markers

SHARES = (0.01, 0.05, 0.1, 0.2)
SPLITS = 200
PROMISE = Path("hold") / "promise.json"  # beside the folder of the checks
MNIST: dict[str, Any] = {
    "name": "quick-mnist",
    "images": 10_000,
    "epochs": 3,
    "batch": 64,
    "draws": 10,
    "backbone": {"name": "paper-resnet", "classes": 10, "in_channels": 1, "width": 32, "kaiming": False},
    "method": {"pretrain": 2 / 3, "lr": 3e-3, "optimizer": "adamw", "schedule": "cycle"},
}
"""The paper's network at half its width, for minutes on a CPU: the promise must hold for a poor model as well."""
STREAMS, ALARM, PHOTOGRAPHS = 300, 0.05, 0.2
STREAM_LENGTH = 400


def measure(demo: Demo, seed: int, splits: int = SPLITS, streams: int = STREAMS) -> dict[str, Any]:
    """All numbers of the experiment, as JSON can hold them."""
    data = load_digits(seed)
    batches = [(data.val.x, data.val.y)]
    gathered = gather(demo.model, batches)
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

    def until(share: float) -> float | None:
        inputs = float(np.quantile(delays, share, method="lower"))
        return inputs if np.isfinite(inputs) else None

    return {
        "alarm": ALARM,
        "streams": streams,
        "false_alarms": {"share": false / streams, "inputs": len(good) - size},
        "photographs": {
            "share": PHOTOGRAPHS,
            "noticed": float(np.isfinite(delays).mean()),
            "inputs_until_alarm": {f"{share} %": until(share / 100) for share in (50, 90)},
        },
    }


def _verdicts(triage: Triage, demo: Demo) -> dict[str, Any]:
    rows = report(triage, demo.attached).sets
    fields = ("notice", "reject", "noticed", "rejected", "confidence", "by_class", "inputs")
    return {"triage": {name: getattr(triage, name) for name in fields}, "sets": [asdict(row) for row in rows]}


def check_record(record: Record, splits: int = SPLITS, seed: int = 0) -> dict[str, Any]:
    """The check for one record, with half of its in-distribution inputs for calibration, as JSON can hold it."""
    sets = [each for each in record.evaluation().sets if each.tier == "id"]
    if not sets:
        sets_of_record = ", ".join(f"{each.name} ({each.tier})" for each in record.sets)
        raise InputError(
            explain("record", f"{record.path} with {sets_of_record}", "a record with in-distribution data")
        )
    good = np.concatenate([each.scores[record.score] for each in sets])
    checks = [check_guarantee(good, share, splits, seed) for share in SHARES]
    probs, labels = np.concatenate([each.probs for each in sets]), np.concatenate([each.labels for each in sets])
    fields = ("experiment", "name", "seed", "config", "device", "seconds", "written", "code", "arrays_sha256")
    return {
        "experiment": "guarantee",
        "model": record.name,
        "score": record.score,
        "seed": seed,
        "data": {
            "name": ", ".join(each.name for each in sets),
            "sha256": ", ".join(each.data_hash for each in sets),
            "calibration": checks[0].calibration,
            "good": len(good),
        },
        "guarantee": [{**asdict(check), "holds": check.holds} for check in checks],
        "probabilities": check_probabilities(probs[labels >= 0], labels[labels >= 0], seed=seed),
        "record": {name: getattr(record, name) for name in fields},
        **provenance(),
    }


def check_probabilities(
    probs: np.ndarray, labels: np.ndarray, splits: int = 20, seed: int = 0
) -> dict[str, Any] | None:
    """Whether stated probabilities come true on one half of the inputs if the temperature was chosen on the other; means over
    random splits. None without labels."""
    rng, half, rows = np.random.default_rng(seed), len(labels) // 2, []
    if not half:
        return None
    for _ in range(splits):
        order = rng.permutation(len(labels))
        chosen, counted = order[:half], order[half:]
        with np.errstate(divide="ignore"):
            temperature = choose_temperature(np.log(probs[chosen]), labels[chosen])
        stated = rescale(torch.from_numpy(probs[counted]).double(), temperature).numpy()
        before, after = (calibration(each, labels[counted]) for each in (probs[counted], stated))
        rows.append((temperature, before.ece, after.ece, before.nll, after.nll))
    means = (float(f"{value:.6g}") for value in np.mean(rows, axis=0))
    names = ("temperature", "gap_before", "gap_after", "nll_before", "nll_after")
    return {"splits": splits, "calibration": half, "test": len(labels) - half, **dict(zip(names, means))}


def check_records(paths: Sequence[Path], output: Path) -> list[Path]:
    """Check each record and write ``<output>/<experiment>-<name>-seed<seed>.json``."""
    written = []
    for path in paths:
        record = read_record(path)
        target = output / f"{slug(record.experiment)}-{slug(record.name)}-seed{record.seed}.json"
        write_json(target, check_record(record))
        written.append(target)
    return written


def guarantee_table(folder: Path) -> str:
    """One line for each check in a folder: the share of good inputs not accepted, mean and standard error over splits."""
    head = ["data", "model", "calibrated on", "counted on", *(f"at most {100 * share:.0f} %" for share in SHARES)]
    rows = []
    for content in _checks(folder, "guarantee"):
        checks = {check["bound"]: check for check in content["guarantee"]}
        shares = [(100 * checks[share]["mean"], 100 * checks[share]["standard_error"]) for share in SHARES]
        counts = [f"{checks[SHARES[0]][name]:,}" for name in ("calibration", "test")]
        measured = (f"{mean:.2f} ± {error:.2f} %" for mean, error in shares)
        rows.append([content["data"]["name"], content["model"], *counts, *measured])
    return markdown_table(head, rows, left=2)


def stated_table(folder: Path) -> str:
    """One line for each check in a folder: how far stated probabilities are from what comes true, without and with T."""
    head = ["data", "model", "T chosen on", "counted on", "T", "gap as the model gives them", "gap as stated"]
    rows = []
    for content in _checks(folder, "probabilities"):
        check = content["probabilities"]
        counts = [f"{check[name]:,}" for name in ("calibration", "test")]
        gaps = [f"{100 * check[name]:.2f} %" for name in ("gap_before", "gap_after")]
        rows.append([content["data"]["name"], content["model"], *counts, f"{check['temperature']:.2f}", *gaps])
    return markdown_table(head, rows, left=2)


def _checks(folder: Path, what: str) -> list[dict[str, Any]]:
    contents = [read_json(path) for path in sorted(folder.glob("*.json"))]
    return [each for each in contents if isinstance(each, dict) and each.get(what) is not None]


def train_on_mnist(
    root: str | Path | None = None, seed: int = 0, output: str | Path = "results", progress: bool = True
) -> Path:
    """The paper's network with attachments, taught for a moment on a part of MNIST; the record of its test images."""
    sources = {split: open_named(f"mnist/{split}", root) for split in ("train", "test")}
    train, test = _images(sources["train"], MNIST["images"]), _images(sources["test"])
    method = make_method("abnn", **MNIST["method"])
    loader = DataLoader(train, batch_size=MNIST["batch"], shuffle=True)
    started = time.perf_counter()
    trained = train_method(method, MNIST["backbone"], loader, MNIST["epochs"], seed=seed, progress=progress)
    seconds = {"training": time.perf_counter() - started}
    started = time.perf_counter()
    result = evaluate_set(trained, DataLoader(test, batch_size=500), "mnist/test", "id", MNIST["draws"], shown=0)
    seconds["evaluation"] = time.perf_counter() - started
    config = {
        **{name: value for name, value in MNIST.items() if name != "method"},
        "method": method.to_config(),
        "data": {split: source.fingerprint for split, source in sources.items()},
    }
    evaluation = Evaluation("attached network", trained.score, (result,), None, seed, config, seconds)
    return write_record(rounded(evaluation, 16), output, MNIST["name"], images=False, summary=summarise)


def _images(source: Source, most: int | None = None) -> TensorDataset:
    """The first images of a source and their labels."""
    count = min(most or len(source), len(source))
    form = InputForm((1, 28, 28), torch.float32)
    return TensorDataset(source.read(0, count, form).x, torch.from_numpy(source.labels[:count]))


def tables(folder: Path) -> dict[str, str]:
    """What a document shows, by the marker of its place: all checks, and of the digits, seed 0, verdicts and drift."""
    texts = {"guarantee": guarantee_table(folder), "stated": stated_table(folder)}
    if (promise := folder.parent / PROMISE).exists():
        texts["promise"] = promise_table(read_json(promise))
    if (folder / "drift.json").exists():
        texts["resets"] = resets_table(read_json(folder / "drift.json"))
    if (folder / "digits-seed0.json").exists():
        digits = read_json(folder / "digits-seed0.json")
        rows = [Row(**each) for each in digits["verdicts"]["default"]["sets"]]
        texts = {"verdicts": rows_as_markdown(rows), **texts, "drift": _drift_text(digits["drift"])}
    return texts


def rows_as_markdown(rows: Sequence[Row]) -> str:
    """Return a table with one line per row."""
    head = ["set", "tier", "inputs", "accepted", "noticed", "rejected", "accuracy of accepted", "accuracy of noticed"]
    lines = []
    for row in rows:
        cells = [row.name, row.tier, str(row.inputs), *(f"{share:.1%}" for share in row.shares)]
        lines.append([*cells, *("–" if value is None else f"{value:.1%}" for value in row.accuracy[:2])])
    return markdown_table(head, lines, left=len(head))


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
    what.add_argument("--promise", action="store_true", help="tied scores, in batches of any size")
    what.add_argument("--drift", action="store_true", help="false alarms of single calibration sets")
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
    elif options.promise:
        write_json(options.output.parent / PROMISE, measure_promise(options.seed))
    elif options.drift:
        write_json(options.output / "drift.json", measure_resets(options.seed))
    elif not options.table:
        written = [options.output / f"digits-seed{options.seed}.json"]
        write_json(written[0], measure(run_demo(options.seed, progress=not options.quiet), options.seed))
    for path in written:
        print(path)
        for each in read_json(path)["guarantee"]:
            print(f"  at most {each['bound']:.0%} promised: {each['mean']:.2%} ± {each['standard_error']:.2%}")
    for marker, text in tables(options.output).items():
        print(text, end="")
        if options.into is not None:
            update_between_markers(options.into, marker, text)


if __name__ == "__main__":
    main()
