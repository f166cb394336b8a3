"""How-to pages that have a world of their own, such as text, regressions or the Hub: their code runs as it stands there, too."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import abnn
from abnn.cli.serve import listen
from abnn.errors import AbnnWarning
from tests.batch.conftest import Here, here
from tests.conftest import generator
from tests.integrations.test_learner import Reader, rows
from tests.store.test_hub import HubServer, server
from tests.website.conftest import ELSEWHERE, ROOT, run_line, run_python
from tests.website.test_code import HOW_TO
from website.blocks import blocks, commands
from website.hooks import nav_pages

__all__ = ["here", "server"]
DOCS = ROOT / "docs"
NOT_RUN = {
    "abnn demo": "tests/cli/test_demo.py runs it; it takes a minute",
    "abnn demo photos": "tests/demo/test_photos.py runs it, with the pretrained network",
    "abnn serve --demo photos": "the same",
    "abnn score my-model/model mails.parquet": "tests/batch/test_plan.py scores text; a tokenizer is not at hand",
    "abnn score my-model/model photos/ scored/ --ray": "needs a Ray cluster",
    "abnn score out/": "tests/batch/test_job.py scores with exported models",
    "abnn score my-model/model photos/ /mnt/scored/": "needs a Ray cluster",
    "abnn sweep": "needs Ray Tune; tests/cli/test_cli_sweep.py runs its trials",
    "ray start": "needs several machines",
    "curl": "needs a server at that address; tests/serve asks in the same way",
    "mlflow models serve": "stays on; tests/test_pyfunc.py asks the application that it runs",
    "podman": "needs podman and a registry; tests/serve/test_deploy.py reads the file",
}
"""Commands that no test of a page runs, by their beginning, and why."""
CHECKED = {
    "adding-a-method": "tests/baselines/test_adding.py",
    "export": "tests/export/test_without_torch.py",
    **{page.stem: "test_code.py" for page in HOW_TO},
}
"""Pages whose code another test runs."""
HERE = {"hub", "regression", "text", "serve", "photos", "evaluate", "scale", "production"}


def test_every_how_to_page_is_run() -> None:
    text = (ROOT / "mkdocs.yml").read_text()
    section = text.partition("  - How-to:\n")[2].partition("\n  - Reference:")[0]
    pages = {Path(page).stem for page in nav_pages() if f" {page}\n" in section + "\n"}
    assert pages - {"index"} == HERE | set(CHECKED)


def own_lines(page: str) -> list[str]:
    """Return the lines of a page that are run here."""
    lines = [line for block in blocks(DOCS / f"{page}.md") if block.language == "bash" for line in commands(block)]
    lines = [line for line in lines if line.split()[0] not in ELSEWHERE]
    exact = {name for name in NOT_RUN if name in lines}
    return [line for line in lines if line not in exact and not line.startswith(tuple(set(NOT_RUN) - {"abnn demo"}))]


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Applications that `abnn serve` would run."""
    applications: list[Any] = []
    monkeypatch.setattr("abnn.serve.server.run", lambda application, *rest: applications.append(application))
    monkeypatch.setattr(sys.modules[listen.__module__], "listen", lambda host, port: listen(host, 0))
    return applications


def pairs(*shape: int, targets: torch.Tensor) -> DataLoader:
    x = torch.rand(len(targets), *shape, generator=generator(0))
    return DataLoader(TensorDataset(x, targets), 32)


def test_regression(scope: dict[str, Any]) -> None:
    code = blocks(DOCS / "regression.md")
    numbers = torch.rand(160, generator=generator(1))
    loader = pairs(5, targets=numbers)
    x = next(iter(loader))[0]
    common = {**scope, "train_loader": loader, "val_loader": loader, "x": x}
    body = [nn.Linear(5, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU()]
    p = run_python(code[:1], {**common, "backbone": nn.Sequential(*body, nn.Linear(32, 1)).eval()}, "regression")["p"]
    assert len(p.verdict) == len(x) and bool((p.std > 0).all())
    model = run_python(code[1:2], {**common, "backbone": nn.Sequential(*body, nn.Linear(32, 2)).eval()}, "variance")
    assert model["model"].task.variance
    labels = pairs(5, targets=(torch.rand(160, 3, generator=generator(2)) > 0.5).float())
    own = {
        **common,
        "train_loader": labels,
        "val_loader": labels,
        "backbone": nn.Sequential(*body, nn.Linear(32, 3)).eval(),
    }
    assert run_python(code[2:3], own, "labels")["p"].labels.shape == (len(x), 3)
    table = np.random.default_rng(0).random((120, 4))
    own = run_python(code[3:], {**scope, "X": table, "y": table.sum(1), "labels": np.arange(120) % 3}, "estimators")
    assert bool((own["low"] < own["high"]).all())


def test_text(scope: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from abnn.networks.vision import torchvision

    torchvision()
    import lightning
    import transformers

    monkeypatch.chdir(tmp_path)
    data = rows(96)
    loader = DataLoader(data, 32)  # type: ignore[arg-type]
    sentences = {name: each for name, each in next(iter(loader)).items() if name != "labels"}
    arguments = transformers.TrainingArguments(
        "here", max_steps=1, report_to=[], use_cpu=True, save_strategy="no", disable_tqdm=True
    )
    short = lightning.Trainer

    def trainer(**options: Any) -> Any:
        return short(max_steps=1, logger=False, enable_checkpointing=False, enable_progress_bar=False, **options)

    monkeypatch.setattr(lightning, "Trainer", trainer)
    words = {"tokenizer": lambda *_, **__: sentences, "sentences": [], "classifier": Reader().eval()}
    loaders = {"train_loader": loader, "val_loader": loader, "data": data, "arguments": arguments}
    own = run_python(blocks(DOCS / "text.md"), {**scope, **words, **loaders}, "text")
    assert len(own["p"].score) == 32 and own["output"]["logits"].shape == (32, 4) and own["model"].is_judge


def test_hub(scope: dict[str, Any], server: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", server.token)
    backbone = abnn.build_backbone("paper-resnet", 10, 1, width=8, blocks=1, stem="small").eval()
    model = abnn.attach(backbone, example=scope["x"][:1])
    abnn.fit(model, scope["held_out_loader"], epochs=0, progress=False)
    Path("results/digits").mkdir(parents=True)
    for file in (ROOT / "results" / "demo").glob("attached-network-seed0.*"):
        shutil.copy(file, "results/digits")
    own = run_python(blocks(DOCS / "hub.md"), {**scope, "model": model, "backbone": backbone}, "hub")
    assert torch.equal(own["model"].predict(scope["x"]).score, model.predict(scope["x"]).score)


def test_production(scope: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import mlflow

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    mlflow.set_tracking_uri((tmp_path / "runs").as_uri())
    model = abnn.attach(abnn.build_backbone("paper-resnet", 10, 1, width=8, blocks=1).eval(), example=scope["x"][:1])
    run_python(blocks(DOCS / "production.md"), {**scope, "model": model}, "production")
    assert Path("reader-mlflow/MLmodel").exists()


@pytest.fixture
def pictures(place: Path) -> Iterator[Path]:
    """Folders and files of pictures, as the pages name them."""
    random = np.random.default_rng(0)
    for folder in ("photos/test/3", "photos/test/7", "photos/night/3", "textures"):
        Path(folder).mkdir(parents=True)
        for number in range(6):
            Image.fromarray(random.integers(0, 256, (8, 8), np.uint8)).save(Path(folder) / f"{number}.png")
    for name in ("fog", "noise"):
        np.savez(f"{name}.npz", images=random.integers(0, 256, (8, 8, 8), np.uint8))
    Image.fromarray(random.integers(0, 256, (8, 8), np.uint8)).save("picture.png")
    return place


def test_serve(pictures: Path, served: list[Any]) -> None:
    for line in own_lines("serve"):
        run_line(line)
    assert len(served) == 2


def test_evaluate(pictures: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def short_page(evaluations: Any, path: Path, *rest: Any, **more: Any) -> Path:
        Path(path).write_text("the page has tests of its own")
        return Path(path)

    monkeypatch.setattr("abnn.evaluate.report.write_report", short_page)
    made = "abnn.build_backbone('paper-resnet', 10, 1, width=8, blocks=1, stem='small').eval()"
    Path("mynets.py").write_text(f"import abnn\n\n\ndef build():\n    return {made}\n")
    saved = abnn.load("my-model/model")
    save_file(saved.backbone.state_dict(), "weights.safetensors")
    with pytest.warns(AbnnWarning, match="came from a saved model"):
        saved.save("my-attachment")
    for name in ("first", "second"):
        shutil.copytree("my-model/model", name)
    Path("demo/records/demo").mkdir(parents=True)
    for file in (ROOT / "results" / "demo").glob("*-seed0.*"):
        shutil.copy(file, "demo/records/demo")
    for line in own_lines("evaluate"):
        run_line(line)
    assert Path("page.html").exists() and Path("compared/comparison.html").exists()


def test_scale(pictures: Path, here: Here) -> None:
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    files = sorted(Path("photos").rglob("*.png"))
    table = {"image": [file.read_bytes() for file in files], "name": [str(file) for file in files]}
    pq.write_table(pa.table(table), "photos.parquet")
    Path("names.txt").write_text("\n".join(map(str, files)) + "\n")
    lines = own_lines("scale")
    assert len(lines) == 3
    for line in lines:
        run_line(line)
        assert Path("scored/_summary.json").exists()
        shutil.rmtree("scored")
