"""What runs a server elsewhere: the dashboard names metrics that exist, and the container is small, pinned and without root."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

from prometheus_client import CollectorRegistry

from abnn.cli.serve import ServeRequest
from abnn.serve.traffic import DRIFT_GAUGES, QUEUE_GAUGES, Measures

ROOT = Path(__file__).parents[2]
DASHBOARD = ROOT / "deploy" / "grafana.json"
CONTAINER = ROOT / "deploy" / "Containerfile"


class Everything:
    """Has every attribute that gauges follow."""

    def __getattr__(self, name: str) -> float:
        return 0.0


def metrics() -> dict[str, set[str]]:
    """Return the labels of every metric that the server shows."""
    measures = Measures()
    for gauges in (QUEUE_GAUGES, DRIFT_GAUGES):
        measures.follow(Everything(), gauges)
    measures.count_request("/predict", 200, 0.1)
    measures.count_batch(1, 0.1)
    registry: CollectorRegistry = measures.registry
    found: dict[str, set[str]] = {}
    for family in registry.collect():
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
    return found


def test_the_dashboard_names_metrics_and_labels_that_exist() -> None:
    board = json.loads(DASHBOARD.read_text())
    known = metrics()
    queries = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    queries += [each["query"]["query"] for each in board["templating"]["list"] if each["type"] == "query"]
    names = {name for query in queries for name in re.findall(r"\babnn_\w+", query)}
    assert names and names <= known.keys(), names - known.keys()
    for query in queries:
        own = {label for name in re.findall(r"\babnn_\w+", query) for label in known[name]} | {"instance", "le"}
        used = re.findall(r"[{,]\s*(\w+)\s*(?:=|!=|=~)", query)
        used += [label for group in re.findall(r"by \(([^)]*)\)", query) for label in re.split(r",\s*", group)]
        assert set(used) <= own, query
    families = {re.sub(r"_(bucket|count|sum|total|created)$", "", name) for name in known}
    shown = {re.sub(r"_(bucket|count|sum|total)$", "", name) for name in names}
    assert families == shown  # nothing that the server measures is left out


def test_the_dashboard_can_be_imported() -> None:
    board = json.loads(DASHBOARD.read_text())
    numbers = [panel["id"] for panel in board["panels"]]
    assert len(set(numbers)) == len(numbers) and board["uid"] and board["schemaVersion"] >= 36
    places = [panel["gridPos"] for panel in board["panels"]]
    cells = [(x, y) for p in places for x in range(p["x"], p["x"] + p["w"]) for y in range(p["y"], p["y"] + p["h"])]
    assert len(set(cells)) == len(cells) and all(x < 24 for x, _ in cells)  # no panel lies on another
    assert all(panel["datasource"]["uid"] == "${source}" for panel in board["panels"])


def instructions() -> list[tuple[str, str]]:
    """Return the instructions of the container's file, lines that go on joined."""
    text = re.sub(
        r"\\\n\s*", " ", "\n".join(line for line in CONTAINER.read_text().splitlines() if not line.startswith("#"))
    )
    return [(line.split()[0], line.partition(" ")[2].strip()) for line in text.splitlines() if line.strip()]


def test_the_container_follows_the_usual_rules() -> None:
    """Those of hadolint that matter here: DL3000, DL3002, DL3004, DL3006, DL3007, DL3020, DL3025, DL3042, DL4000."""
    found = instructions()
    kinds = [kind for kind, _ in found]
    assert set(kinds) <= {"FROM", "WORKDIR", "COPY", "RUN", "ENV", "USER", "EXPOSE", "HEALTHCHECK", "ENTRYPOINT", "CMD"}
    for kind, rest in found:
        if kind == "FROM":
            assert re.fullmatch(r"[\w./-]+:(?!latest)[\w.-]+( AS \w+)?", rest), rest
        if kind == "WORKDIR":
            assert rest.startswith("/")
        if kind == "RUN":
            assert "sudo" not in rest and ("pip install" not in rest or "--no-cache-dir" in rest)
        if kind in ("ENTRYPOINT", "CMD"):
            assert isinstance(json.loads(rest), list)
        if kind == "ENV":
            assert not re.search(r"token|secret|password", rest, re.IGNORECASE)
        if kind == "COPY" and "--from" not in rest:
            assert all((ROOT / source).exists() for source in shlex.split(rest)[:-1])
    last = len(kinds) - 1 - kinds[::-1].index("FROM")
    final = dict(found[last:])
    assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", final["USER"])  # no root, and a number, as Kubernetes wants it
    assert kinds.index("USER") > last and "RUN" not in kinds[last:]  # nothing is built in what is shipped


def test_the_container_serves_where_it_says() -> None:
    final = dict(instructions())
    port = ServeRequest().port
    assert final["EXPOSE"] == str(port) and f":{port}/ready" in final["HEALTHCHECK"]
    assert json.loads(final["ENTRYPOINT"]) == ["abnn", "serve"]
    assert json.loads(final["CMD"])[:3] == ["/model", "--host", "0.0.0.0"]
