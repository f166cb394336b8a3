"""Models as pyfuncs of MLflow: loaded, served, and equal to the model itself."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import abnn
from tests.conftest import generator, mlp, with_score

mlflow = pytest.importorskip("mlflow")
from abnn.pyfunc import log_model, save_model

X = torch.rand(120, 1, 8, 8, generator=generator(0))


@pytest.fixture(scope="module")
def model() -> abnn.Attached:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        backbone = abnn.build_backbone("paper-resnet", 3, 1, width=8, blocks=2, stem="small").eval()
    attached = with_score(abnn.attach(backbone, X[:1]), X[:40])
    abnn.calibrate(attached, [(X[40:], torch.arange(80) % 3)], progress=False)
    attached.extra = {"class_names": ["a", "b", "c"]}
    return attached


@pytest.fixture
def path(model: abnn.Attached, tmp_path: Path) -> str:
    save_model(model, tmp_path / "mlflow")
    return str(tmp_path / "mlflow")


def test_a_loaded_model_says_what_the_model_says(model: abnn.Attached, path: str) -> None:
    expected = model.predict(X[:5]).to_pandas(["a", "b", "c"])
    found = mlflow.pyfunc.load_model(path).predict(X[:5].numpy())
    assert found.equals(expected) and list(found)[:3] == ["label", "score", "verdict"]
    assert not list(Path(path).rglob("*.pkl"))


def test_it_is_served(model: abnn.Attached, path: str) -> None:
    """The application that ``mlflow models serve`` runs."""
    from fastapi.testclient import TestClient
    from mlflow.pyfunc import scoring_server

    client = TestClient(scoring_server.init(mlflow.pyfunc.load_model(path)))
    assert client.get("/ping").status_code == 200
    answer = client.post("/invocations", json={"inputs": X[:3].tolist()})
    assert answer.status_code == 200
    rows, expected = answer.json()["predictions"], model.predict(X[:3])
    assert [row["verdict"] for row in rows] == expected.verdict
    np.testing.assert_allclose([row["score"] for row in rows], expected.score.numpy(), rtol=1e-6)
    wrong = client.post(
        "/invocations", content=json.dumps({"inputs": [[1.0]]}), headers={"content-type": "application/json"}
    )
    assert wrong.status_code == 400


def test_it_is_logged(model: abnn.Attached, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    mlflow.set_tracking_uri((tmp_path / "runs").as_uri())
    with mlflow.start_run():
        logged = log_model(model, "reader")
    found = mlflow.pyfunc.load_model(logged.model_uri).predict(X[:2].numpy())
    np.testing.assert_array_equal(found["score"], model.predict(X[:2]).score.numpy())


def backbone() -> nn.Module:
    torch.manual_seed(0)
    return mlp().eval()


def test_tables_and_networks_of_ones_own(tmp_path: Path) -> None:
    import pandas

    x = torch.randn(40, 6, generator=generator(1))
    model = with_score(abnn.attach(backbone(), x[:1]), x)
    save_model(model, tmp_path / "table")
    own = {"backbone": "tests.test_pyfunc:backbone"}
    loaded = mlflow.pyfunc.load_model(str(tmp_path / "table"), model_config=own)
    table = pandas.DataFrame(x[:4].numpy(), columns=list("abcdef"))
    found = loaded._model_impl.predict(table)
    np.testing.assert_array_equal(found["score"], model.predict(x[:4]).score.numpy())
