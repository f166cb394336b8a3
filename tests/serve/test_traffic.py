"""Drift in the served traffic: the monitor sees exactly the scores of the answers, and its state outlives the server."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from abnn.data.digits import load_digits
from abnn.data.images import encode_png
from abnn.errors import FileFormatError, InputError
from abnn.serve import Settings, create_app
from abnn.serve.traffic import Traffic
from abnn.triage.drift import DriftMonitor
from tests.serve.conftest import upload


def pictures(part: Any, count: int) -> list[bytes]:
    return [encode_png((x[0] * 255).round().byte().numpy()) for x in part.x[:count]]


def ask(client: TestClient, images: list[bytes]) -> list[float]:
    answers = client.post("/predict/batch", files=[("images", ("x", each)) for each in images]).json()["results"]
    return [answer["score"] for answer in answers if "score" in answer]


def gauge(client: TestClient, name: str) -> float:
    found = re.search(rf"^abnn_drift_{name} (\S+)$", client.get("/metrics").text, re.MULTILINE)
    assert found is not None
    return float(found[1])


def test_the_monitor_sees_the_scores_of_all_answers(model: Any, settings: Settings) -> None:
    by_hand = model.triage.monitor()
    with TestClient(create_app(model, settings)) as client:
        assert client.get("/drift").json()["images"] == 0 == gauge(client, "images")
        for image in pictures(load_digits().test, 3):
            by_hand.update(upload(client, image).json()["score"])
        by_hand.update(ask(client, [*pictures(load_digits().semi, 4), b"no picture"]))
        state = client.get("/drift").json()
        assert gauge(client, "p_value") == pytest.approx(by_hand.p_value) == state["p_value"]
        assert gauge(client, "images") == state["images"] == 7
        assert gauge(client, "false_alarm_rate") == state["false_alarm_rate"] == 0.01


def test_scores_and_thresholds_are_not_rounded(model: Any, settings: Settings) -> None:
    """A score that was rounded could change its place among those of calibration, and the side of a threshold."""
    x = load_digits().test.x[:4]
    # As a picture has it: 255 levels.
    x = (x * 255).round() / 255
    expected = model.triage(model.predict(x, draws=model.triage.draws, seed=model.triage.seed)).score
    with TestClient(create_app(model, settings)) as client:
        answers = [upload(client, image).json() for image in pictures(load_digits().test, 4)]
    for answer, score in zip(answers, expected.tolist()):
        assert answer["score"] == pytest.approx(score, abs=0.05)  # hardly fitted: its units are hardly above rounding
        assert answer["thresholds"]["notice"] == model.triage.notice
        assert (answer["verdict"] == "accept") == (answer["score"] <= model.triage.notice)


def test_photographs_among_digits_raise_the_alarm(model: Any, settings: Settings) -> None:
    with TestClient(create_app(model, settings)) as client:
        for first in range(0, 200, 8):
            ask(client, pictures(load_digits().full, 200)[first : first + 8])
            if (state := client.get("/drift").json())["alarm"]:
                break
        assert gauge(client, "alarm") == 1 and state["p_value"] <= state["false_alarm_rate"]
        assert state["direction"] in ("higher", "lower") and state["direction"] in state["message"]
        assert 1 <= state["alarm_after"] <= state["images"]


def test_the_state_is_kept_over_restarts(model: Any, settings: Settings, tmp_path: Path) -> None:
    kept = replace(settings, drift=tmp_path / "drift.json")
    by_hand = model.triage.monitor()
    for part in (load_digits().test, load_digits().semi):
        with TestClient(create_app(model, kept)) as client:
            by_hand.update(ask(client, pictures(part, 6)))
        state = DriftMonitor.load(tmp_path / "drift.json")  # the server has ended
        assert state.to_dict() == by_hand.to_dict()


def test_a_state_of_another_model_and_a_place_that_cannot_be_written_are_errors(model: Any, tmp_path: Path) -> None:
    state = model.triage.monitor().to_dict()
    state["edges"][0] -= 1
    path = tmp_path / "drift.json"
    path.write_text(json.dumps(state))
    with pytest.raises(InputError, match="another model"):
        create_app(model, Settings(drift=path))
    path.write_text("{}")
    with pytest.raises(Exception, match="drift monitor"):
        create_app(model, Settings(drift=path))
    path.unlink()
    Traffic(model.triage, path)
    path.write_text(path.read_text().replace('"seen": 0', '"seen": 7'))
    with pytest.raises(FileFormatError, match="was changed since it was saved"):
        create_app(model, Settings(drift=path))
    path.unlink()
    path.mkdir()
    with pytest.raises(Exception, match="drift"):
        create_app(model, Settings(drift=path))


def test_a_model_without_calibration_scores_is_not_watched(model: Any, tmp_path: Path) -> None:
    triage = replace(model.triage, reference=((), ()))
    traffic = Traffic(triage)
    traffic.update([1.0])
    assert traffic.state()["watching"] is False and "Not watched" in traffic.state()["message"]
    with pytest.raises(InputError, match="--drift"):
        Traffic(triage, tmp_path / "drift.json")


async def _save(traffic: Traffic) -> None:
    await traffic.save()


def test_a_full_disk_is_said_and_does_not_stop_the_answers(
    model: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    import asyncio

    from abnn.serve import traffic as module

    watched = Traffic(model.triage, tmp_path / "drift.json")
    written = (tmp_path / "drift.json").read_bytes()

    def full(path: Path, content: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module, "write_json", full)
    watched.update([0.1])
    asyncio.run(_save(watched))
    assert "No space left" in caplog.text and (tmp_path / "drift.json").read_bytes() == written
    monkeypatch.undo()
    asyncio.run(_save(watched))
    assert DriftMonitor.load(tmp_path / "drift.json").seen == 1


def test_an_older_state_never_replaces_a_newer_one(model: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where a server stops while it writes."""
    import asyncio
    import threading
    import time

    from abnn.serve import traffic as module

    watched, begun, usual = Traffic(model.triage, tmp_path / "drift.json"), threading.Event(), module.write_json

    def slow(path: Path, content: dict[str, Any]) -> None:
        if content["seen"] == 1:
            begun.set()
            time.sleep(0.5)
        usual(path, content)

    async def stop() -> None:
        watched.update([0.1])
        writing = asyncio.create_task(watched.save())
        await asyncio.to_thread(begun.wait)
        writing.cancel()
        watched.update([0.2])
        await watched.save()

    monkeypatch.setattr(module, "write_json", slow)
    asyncio.run(stop())
    assert DriftMonitor.load(tmp_path / "drift.json").seen == 2
