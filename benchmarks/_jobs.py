"""What the measurements of ``abnn score`` share: images and a model to score, jobs as processes, what these take, and a cluster."""

from __future__ import annotations

import contextlib
import hashlib
import io
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from PIL import Image

import abnn
from abnn.errors import AbnnError

SIDE = int(os.environ.get("SCORE_SIDE", "64"))  # of the pictures
CLASSES, GROUP = 10, 2000
MARK = "ABNN_JOB_MARK"  # in the environment of a job, and so of all processes that it starts
TICKS = os.sysconf("SC_CLK_TCK")


def make_images(path: Path, count: int) -> str:
    """Write ``count`` small JPEG pictures into a Parquet file, unless it is there; every 5,000th is damaged. Return its sha256."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        scratch = path.with_suffix(".part")
        with pq.ParquetWriter(scratch, pa.schema({"name": pa.string(), "image": pa.binary()})) as writer:
            for first in range(0, count, GROUP):
                numbers = range(first, min(first + GROUP, count))
                rows = {"name": [f"image-{number:06d}" for number in numbers], "image": [_jpeg(n) for n in numbers]}
                writer.write_table(pa.table(rows))
        os.replace(scratch, path)
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _jpeg(number: int) -> bytes:
    if number % 5000 == 4999:
        return b"damaged"
    small = np.random.default_rng(number).integers(0, 256, (8, 8, 3), np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(small).resize((SIDE, SIDE), Image.Resampling.BICUBIC).save(buffer, "JPEG", quality=85)
    return buffer.getvalue()


def make_model(path: Path) -> Path:
    """Save a ResNet-18 with attachments and thresholds, of random weights: its speed is that of a trained one."""
    with contextlib.suppress(AbnnError):  # there is none, or it is of another version
        abnn.load(path)
        return path
    shutil.rmtree(path, ignore_errors=True)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        backbone = abnn.build_backbone("resnet18", CLASSES).eval()
        x, y = tensors(1280), torch.arange(1280) % CLASSES
        batches = list(zip(x.split(64), y.split(64)))
        model = abnn.attach(backbone, x[:1])
        abnn.fit(model, batches[:10], epochs=0, progress=False)
        abnn.calibrate(model, batches[10:], progress=False)
        model.save(path, backbone=True)
    return path


def tensors(count: int) -> torch.Tensor:
    """Return pictures as inputs of the model, others than those of :func:`make_images`."""
    pictures = [np.array(Image.open(io.BytesIO(_jpeg(10**8 + number)))) for number in range(count)]
    return torch.from_numpy(np.stack(pictures)).movedim(3, 1).float() / 255


def is_worker(name: str) -> bool:
    """Whether a process with this title scores: one of this machine, or one of Ray's."""
    return "abnn.batch.processes" in name or name.startswith("ray::MapWorker")


class Job:
    """``abnn score`` as a process, with all processes that it starts: what they take, and ways to kill them."""

    def __init__(self, *arguments: str, command: str = "abnn") -> None:
        self.mark = uuid.uuid4().hex
        environment = {**os.environ, MARK: self.mark, "RAY_USAGE_STATS_ENABLED": "0", "OMP_NUM_THREADS": "1"}
        self.cpu: dict[int, tuple[str, float]] = {}
        self.peak = 0.0
        self.by_role: dict[str, float] = {}
        self.started = time.perf_counter()
        self.process = subprocess.Popen([sys.executable, "-m", *command.split(), *arguments], env=environment)
        self.watcher = threading.Thread(target=self._watch, daemon=True)
        self.watcher.start()

    def wait(self) -> int:
        status = self.process.wait()
        self.seconds = time.perf_counter() - self.started
        self.watcher.join()
        return status

    def processes(self) -> dict[int, str]:
        """Return processes of this job by number, with what they call themselves."""
        found = {}
        for place in Path("/proc").iterdir():
            with contextlib.suppress(OSError):
                if place.name.isdigit() and f"{MARK}={self.mark}".encode() in (place / "environ").read_bytes():
                    found[int(place.name)] = (place / "cmdline").read_bytes().replace(b"\0", b" ").decode().strip()
        return found

    def kill(self, title: str, which: int) -> int | None:
        """Kill one process whose title begins like this, as the system does when memory ends."""
        some = sorted(number for number, name in self.processes().items() if name.startswith(title))
        if not some:
            return None
        with contextlib.suppress(ProcessLookupError):
            os.kill(some[which % len(some)], signal.SIGKILL)
        return some[which % len(some)]

    def _watch(self) -> None:
        """Note processor time twice a second, and memory too in the first half minute, then every three seconds: counting pages takes time."""
        for turn in itertools.count():
            if self.process.poll() is not None:
                return
            roles: dict[str, float] = {}
            for number, name in self.processes().items():
                with contextlib.suppress(OSError, IndexError):
                    fields = Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()
                    role = "driver" if number == self.process.pid else "worker" if is_worker(name) else "ray"
                    self.cpu[number] = (role, (int(fields[11]) + int(fields[12])) / TICKS)
                    if turn % 6 and turn > 60:
                        continue
                    rollup = Path(f"/proc/{number}/smaps_rollup").read_text()
                    share = next(int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Pss:")) / 1024
                    roles[role] = roles.get(role, 0.0) + share
            self.peak = max(self.peak, sum(roles.values()))
            for role, size in roles.items():
                self.by_role[role] = max(self.by_role.get(role, 0.0), size)
            time.sleep(0.5)

    def taken(self) -> dict[str, Any]:
        """Return seconds, seconds of processors, and the most memory that all its processes had at once, in MB."""
        spent: dict[str, float] = {}
        for role, seconds in self.cpu.values():
            spent[role] = round(spent.get(role, 0.0) + seconds, 1)
        return {
            "seconds": round(self.seconds, 1),
            "cpu_seconds": round(sum(spent.values()), 1),
            "cpu_seconds_by_role": spent,
            "peak_mb": round(self.peak, 1),
            "peak_mb_by_role": {role: round(size, 1) for role, size in sorted(self.by_role.items())},
        }


@contextlib.contextmanager
def cluster(nodes: int) -> Iterator[tuple[str, Job]]:
    """Yield the address of a Ray cluster of so many nodes with one processor each, and its processes."""
    code = (
        "import sys, time\nfrom ray.cluster_utils import Cluster\n"
        "own = dict(num_cpus=1, object_store_memory=80 * 2**20, include_dashboard=False)\n"
        f"cluster = Cluster(initialize_head=True, head_node_args=own)\nown.pop('include_dashboard')\n"
        f"[cluster.add_node(**own) for _ in range({nodes - 1})]\ncluster.wait_for_nodes()\n"
        "open(sys.argv[1], 'w').write(cluster.address)\ntime.sleep(10**6)\n"
    )
    place, script = Path(f"/tmp/abnn-cluster-{os.getpid()}"), Path(f"/tmp/abnn_cluster_{os.getpid()}.py")
    script.write_text(code)
    place.unlink(missing_ok=True)
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), "/tmp"]))
    job = Job(str(place), command=script.stem)
    try:
        while not place.exists() or not place.read_text():
            if job.process.poll() is not None:
                raise RuntimeError("the cluster did not start")
            time.sleep(0.5)
        yield place.read_text(), job
    finally:
        for number in job.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(number, signal.SIGKILL)
        job.wait()
        script.unlink()
        place.unlink(missing_ok=True)


def rows_of(output: Path) -> tuple[dict[str, tuple[Any, ...]], int]:
    """Return label, score, verdict and error by id, and how many rows there are, ids that come twice included."""
    table = pq.read_table(output, columns=["id", "label", "score", "verdict", "error"])
    columns = [table[name].to_pylist() for name in table.column_names]
    return {row[0]: row[1:] for row in zip(*columns)}, table.num_rows


def summary_of(output: Path) -> dict[str, Any]:
    summary = json.loads((output / "_summary.json").read_text())
    drift = summary.pop("drift")
    return {**summary, "drift_alarm": drift["alarmed_at"], "drift_inputs": drift["seen"]}
