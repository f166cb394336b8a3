"""How ``abnn score`` does with many images: its speed beside the model's own, its memory, and what survives kills.

    python benchmarks/score.py throughput     100,000 images on this machine; the model alone before and after
    python benchmarks/score.py memory         100,000 images, as before, against 1,000: the most memory of all processes together
    python benchmarks/score.py kills          a cluster of four Ray nodes, a worker killed every 20 seconds, once a whole node
    python benchmarks/score.py driver         the command itself killed again and again, then started once more
    python benchmarks/score.py --table        put the tables of results/scale into docs/scale.md again

Each writes a JSON record into results/scale. ``--images`` sets another number, ``--scratch`` where data and results lie. SCORE_SIDE=128 in the environment
makes pictures of so many pixels instead of 64, and records of its own.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import random
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from _jobs import SIDE, Job, cluster, is_worker, make_images, make_model, rows_of, summary_of, tensors
from timing import ROOT, machine

from abnn.batch.processes import cores
from abnn.evaluate.provenance import provenance
from abnn.files import write_json
from research.tables import update_between_markers

RESULTS, DOCS = ROOT / "results" / "scale", ROOT / "docs" / "scale.md"
BY_CPU = "Processor time is that of all processes of a job together."
EVERY = 20.0  # seconds between kills
BATCH = 64
BUSY = 3.5  # load, of two cores: above it the model alone and a job do not get the same share of the machine
OPTIONS = ("--id-column", "name", "--quiet")


def own_speed(model: str, batches: int) -> tuple[float, float]:
    """Return seconds and processor seconds of so many batches from memory, in one process with one thread."""
    import abnn

    torch.set_num_threads(1)
    loaded, x = abnn.load(model), tensors(BATCH)
    loaded.predict(x)
    started, used = time.perf_counter(), time.process_time()
    for _ in range(batches):
        loaded.predict(x)
    return time.perf_counter() - started, time.process_time() - used


def measure_own(model: Path, images: int) -> dict[str, float]:
    """The model alone: a process for each core, all at once, images in memory and decoded already."""
    batches = -(-images // BATCH // cores())
    with multiprocessing.get_context("spawn").Pool(cores()) as pool:
        taken = pool.starmap(own_speed, [(str(model), batches)] * cores())
    per_image = [used / (batches * BATCH) for _, used in taken]
    rate = sum(batches * BATCH / seconds for seconds, _ in taken)
    return {"images_per_second": round(rate, 1), "cpu_ms": round(1000 * sum(per_image) / len(per_image), 4)}


def throughput(data: Path, model: Path, images: int, scratch: Path) -> dict[str, Any]:
    output, some = scratch / "throughput", min(8000, images)
    shutil.rmtree(output, ignore_errors=True)
    before = measure_own(model, some)
    job = Job("score", str(model), str(data), str(output), *OPTIONS)
    assert job.wait() == 0
    after = measure_own(model, some)
    found, rows = rows_of(output)
    assert rows == len(found) == images
    taken = job.taken()
    own = (before["cpu_ms"] + after["cpu_ms"]) / 2
    rate, alone = images / taken["seconds"], (before["images_per_second"] + after["images_per_second"]) / 2
    return {
        "model_before": before,
        "model_after": after,
        "job": {**taken, "images_per_second": round(rate, 1), "cpu_ms": round(1000 * taken["cpu_seconds"] / images, 4)},
        "share_of_the_models_speed_by_cpu": round(own / (1000 * taken["cpu_seconds"] / images), 4),
        "share_of_the_models_speed_by_clock": round(rate / alone, 4),
        "summary": summary_of(output),
    }


def memory(data: Path, model: Path, images: int, scratch: Path) -> dict[str, Any]:
    """A hundredth of the images, against the job of ``throughput``."""
    small, output = max(1, images // 100), scratch / "memory"
    whole = json.loads((RESULTS / "throughput.json").read_text())
    assert whole["images"] == images
    shutil.rmtree(output, ignore_errors=True)
    make_images(scratch / f"images-{small}.parquet", small)
    options = (
        *OPTIONS,
        "--size",
        str(max(1, small // 4)),
    )  # every worker gets some, in batches as large as those of the whole
    job = Job("score", str(model), str(scratch / f"images-{small}.parquet"), str(output), *options)
    assert job.wait() == 0
    rows = [{"images": small, **job.taken()}, {"images": images, **whole["job"]}]
    return {"runs": rows, "growth": round(rows[1]["peak_mb"] / rows[0]["peak_mb"] - 1, 4)}


def kills(data: Path, model: Path, images: int, scratch: Path) -> dict[str, Any]:
    """Kill a worker every 20 seconds; the third time, the whole node of one."""
    output, chosen = scratch / "kills", random.Random(0)
    shutil.rmtree(output, ignore_errors=True)
    killed: list[dict[str, Any]] = []
    with cluster(4) as (address, nodes):
        started = time.perf_counter()
        options = [*OPTIONS, "--ray", address, "--size", "500"]
        job = Job("score", str(model), str(data), str(output), *options)
        following = started + EVERY
        while job.process.poll() is None:
            time.sleep(0.2)
            if time.perf_counter() < following:
                continue
            following += EVERY
            node = len(killed) == 2  # with its workers
            title = str(Path(_raylet())) if node else "ray::MapWorker"
            number = nodes.kill(title, 3 if node else chosen.randrange(4))
            if number is not None:
                killed.append({"after": round(time.perf_counter() - started, 1), "what": "node" if node else "worker"})
        assert job.wait() == 0
    return {"kills": killed, **_compared(output, model, data, images, scratch), "job": job.taken()}


def _raylet() -> Path:
    import ray

    return Path(ray.__file__).parent / "core" / "src" / "ray" / "raylet" / "raylet"


def _compared(output: Path, model: Path, data: Path, images: int, scratch: Path) -> dict[str, Any]:
    """Compare with a job that nobody disturbed."""
    calm = scratch / f"calm-{images}"
    if not (calm / "_summary.json").exists():
        options = [*OPTIONS, "--size", "500"]
        assert Job("score", str(model), str(data), str(calm), *options).wait() == 0
    (found, rows), (expected, _) = rows_of(output), rows_of(calm)
    different = sum(found[name] != row for name, row in expected.items() if name in found)
    return {
        "rows": rows,
        "twice": rows - len(found),
        "missing": len(expected.keys() - found.keys()),
        "different_rows": different,
        "summary": summary_of(output),
    }


def driver(data: Path, model: Path, images: int, scratch: Path) -> dict[str, Any]:
    """Kill the command after a third and after two thirds of the parts, then let it end."""
    output, rounds = scratch / "driver", []
    shutil.rmtree(output, ignore_errors=True)
    options = [*OPTIONS, "--size", "500"]
    parts = -(-images // 500)
    for share in (1 / 3, 2 / 3, None):
        before = {path.name: path.stat().st_ino for path in output.glob("part-*")}
        job = Job("score", str(model), str(data), str(output), *options)
        while job.process.poll() is None and (share is None or len(list(output.glob("part-*"))) < share * parts):
            time.sleep(0.1)
        if share is not None:
            job.process.kill()
        status = job.wait()
        time.sleep(5)
        left = {n: name for n, name in job.processes().items() if is_worker(name)}
        kept = all((output / name).stat().st_ino == number for name, number in before.items())
        now = len(list(output.glob("part-*")))
        rounds.append({"status": status, "parts_after": now, "kept_earlier_parts": kept, "workers_left": len(left)})
    return {"rounds": rounds, **_compared(output, model, data, images, scratch)}


MEASUREMENTS = {"throughput": throughput, "memory": memory, "kills": kills, "driver": driver}


def own_ms(record: dict[str, Any]) -> float:
    """Return the processor time of the model alone for one image."""
    return (record["model_before"]["cpu_ms"] + record["model_after"]["cpu_ms"]) / 2


def tables(records: Path) -> str:
    """Return what docs/scale.md shows."""
    found = {name: json.loads((records / f"{name}.json").read_text()) for name in MEASUREMENTS}
    speed, job = found["throughput"], found["throughput"]["job"]
    own = own_ms(speed)
    first, second = found["memory"]["runs"]
    killed, restarted = found["kills"], found["driver"]
    growth, share = found["memory"]["growth"], speed["share_of_the_models_speed_by_cpu"]
    load = max(speed["machine"]["load_before"], speed["load_after"])
    clock = f"{100 * speed['share_of_the_models_speed_by_clock']:.1f} %" if load < BUSY else "other work was in the way"
    slope = (second["cpu_seconds"] - first["cpu_seconds"]) / (second["images"] - first["images"])
    start = first["cpu_seconds"] - slope * first["images"]

    def lost(run: dict[str, Any]) -> str:
        return f"{run['twice']}, {run['missing']}, {run['different_rows']}"

    rows = {
        "the model alone, pictures in memory: one core, one image": f"{own:.2f} ms",
        f"`abnn score`, {speed['images']:,} images, all its processes: one core, one image": f"{job['cpu_ms']:.2f} ms",
        "share of the model's own speed, by processor time": f"{100 * share:.1f} %",
        "the same without the start": f"{100 * own / (1000 * slope):.1f} %",
        f"the same by the clock, start included, at a load of {load:.1f}": clock,
        f"memory of all processes, {first['images']:,} images": f"{first['peak_mb']:,.0f} MB",
        f"memory of all processes, {second['images']:,} images": f"{second['peak_mb']:,.0f} MB ({100 * growth:+.1f} %)",
        f"{killed['images']:,} images on four nodes, {len(killed['kills'])} kills: twice, missing, other": lost(killed),
        f"{restarted['images']:,} images, the command killed twice: twice, missing, other": lost(restarted),
    }
    if (records / "throughput-128.json").exists():
        large = json.loads((records / "throughput-128.json").read_text())
        by_cpu, by_clock = (100 * large[f"share_of_the_models_speed_by_{what}"] for what in ("cpu", "clock"))
        rows[
            f"pictures of 128 pixels, where the model takes {own_ms(large):.1f} ms: the same by processor time, by the clock"
        ] = f"{by_cpu:.1f} %, {by_clock:.1f} %"
    rows["cost model: start, then each image, on one core"] = f"{start:.0f} s, {1000 * slope:.2f} ms"
    lines = ["| measured | result |", "|---|---|", *(f"| {what} | {result} |" for what, result in rows.items())]
    machine = speed["machine"]
    said = f"Measured with `python benchmarks/score.py` on {machine['cores']} cores ({machine['processor']}): "
    text = f"{said}a ResNet-18 with attachments, JPEG pictures of 64 x 64 in Parquet. {BY_CPU}"
    paper = ["| machines of 32 cores | a billion images |", "|---:|---:|"]
    for count in (1, 10, 100):
        hours = (start / 32 + 10**9 * slope / (32 * count)) / 3600
        paper.append(f"| {count} | {f'{hours:.1f} hours' if hours >= 1 else f'{60 * hours:.0f} minutes'} |")
    return "\n".join([*lines, "", text, "", "On paper, with this model and its cost on every core:", "", *paper])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("measurement", nargs="*", choices=[*MEASUREMENTS, []])
    parser.add_argument("--images", type=int, default=100_000)
    parser.add_argument("--scratch", type=Path, default=Path(tempfile.gettempdir()) / "abnn-scale")
    parser.add_argument("--output", type=Path, default=RESULTS)
    parser.add_argument("--table", action="store_true")
    options = parser.parse_args()
    for name in options.measurement:
        other = "" if SIDE == 64 else f"-{SIDE}"
        data = options.scratch / f"images{other}-{options.images}.parquet"
        digest, model = make_images(data, options.images), make_model(options.scratch / f"model{other}")
        state = {"images": options.images, "data_sha256": digest, "machine": machine(), "seed": 0, **provenance()}
        result = MEASUREMENTS[name](data, model, options.images, options.scratch)
        record = {"measurement": name, "batch_size": BATCH, **state, **result, "load_after": os.getloadavg()[0]}
        write_json(options.output / f"{name}{other}.json", record)
        print(json.dumps({key: value for key, value in record.items() if key not in ("versions", "machine")}, indent=1))
    if options.table:
        update_between_markers(DOCS, "scale", tables(options.output))


if __name__ == "__main__":
    main()
