"""Models on the Hub: pushed, fetched and equal to the bit, by way of a server on this machine that speaks its protocol."""

from __future__ import annotations

import copy
import json
import logging
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import abnn
from abnn.errors import AbnnError, FileFormatError, InputError
from abnn.store import hub
from abnn.store.saved import fingerprint, load_model
from tests.conftest import generator, with_score
from tests.store.hub_server import HubServer

constants = pytest.importorskip("huggingface_hub.constants")
TOKEN = "hf_never_to_be_seen_anywhere"
X = torch.rand(60, 1, 8, 8, generator=generator(0))
RECORD = Path(__file__).parents[2] / "results" / "demo" / "attached-network-seed0.json"


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    own = HubServer(TOKEN)
    monkeypatch.setattr(constants, "ENDPOINT", own.url)
    monkeypatch.setattr(
        constants, "HUGGINGFACE_CO_URL_TEMPLATE", f"{own.url}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
    )
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "no-token"))
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_TELEMETRY", True)
    monkeypatch.chdir(tmp_path)
    yield own
    own.close()


@pytest.fixture(scope="module")
def model() -> abnn.Attached:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        backbone = abnn.build_backbone("paper-resnet", 3, 1, width=8, blocks=2, stem="small").eval()
    attached = with_score(abnn.attach(backbone, X[:1]), X[:40])
    abnn.calibrate(attached, [(X, torch.arange(60) % 3)], progress=False)
    attached.extra = {"class_names": ["cat", "dog", "a|b"], "data": "made-up pictures"}
    return attached


def same(first: abnn.Attached, second: abnn.Attached) -> bool:
    one, two = first.predict(X), second.predict(X)
    assert one.stated is not None and two.stated is not None
    equal = torch.equal(one.samples, two.samples) and torch.equal(one.score, two.score)
    return equal and torch.equal(one.stated, two.stated) and one.verdict == two.verdict


def test_push_fetch_load_and_predict_are_equal_to_the_bit(
    server: HubServer, model: abnn.Attached, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.DEBUG)
    backbone = copy.deepcopy(model.backbone)
    url = model.push_to_hub("user/small", token=TOKEN)
    assert url.startswith(f"{server.url}/user/small/commit/")
    assert set(server.files["user/small"]) == {"abnn.json", "attachments.safetensors", "README.md"}
    fetched = abnn.load("user/small", backbone)
    assert same(model, fetched) and fetched.extra == model.extra and fetched.triage == model.triage

    model.push_to_hub("user/small", backbone=True, token=TOKEN)  # now all that is needed
    assert same(model, abnn.load("user/small"))
    assert same(model, abnn.Attached.from_pretrained("user/small", revision="main"))
    asked = len(server.asked)
    abnn.load("user/small")
    assert not [path for _, path in server.asked[asked:] if "resolve" in path]  # the cache has the files

    model.push_to_hub("user/small", token=TOKEN)  # the weights of the backbone go with the commit
    assert "backbone.safetensors" not in server.files["user/small"]
    everything = [path.read_bytes() for path in Path.cwd().rglob("*") if path.is_file()] + server.bodies
    everything += [caplog.text.encode(), "".join(capfd.readouterr()).encode()]
    assert not any(TOKEN.encode() in content for content in everything)


@pytest.mark.parametrize("name", ["abnn.json", "attachments.safetensors", "backbone.safetensors"])
@pytest.mark.parametrize("how", ["altered", "cut short"])
def test_a_file_that_is_not_what_was_pushed_is_refused(
    server: HubServer, model: abnn.Attached, name: str, how: str
) -> None:
    model.push_to_hub("user/small", backbone=True, token=TOKEN)
    content = server.files["user/small"][name]
    middle = len(content) // 2
    other = (
        content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :] if how == "altered" else content[:-7]
    )
    server.damage = lambda asked, content: other if asked == name else content
    if how == "altered":
        with pytest.raises(FileFormatError, match=r"It came from user/small; delete .* to fetch it again"):
            abnn.load("user/small")
    else:
        server.files["user/small"][name] = other  # a server that believes in it; else the size alone tells
        with pytest.raises(FileFormatError):
            abnn.load("user/small")


def test_nothing_is_fetched_unless_it_is_asked_for(
    server: HubServer, model: abnn.Attached, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model.push_to_hub("user/small", backbone=True, token=TOKEN)
    folder = model.save_pretrained(tmp_path / "user" / "small", backbone=True)
    asked, connect = len(server.asked), socket.socket.connect

    def refuse(*_: Any) -> None:
        raise AssertionError("a connection")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    assert same(model, abnn.load(folder)) and same(model, abnn.load("user/small"))  # which is a folder here
    assert same(model, abnn.Attached.from_pretrained("user/small"))
    shutil.rmtree(folder)
    for path in (Path("user/small"), "./user/small", "small", "a/user/small", str(folder)):
        with pytest.raises(FileFormatError, match="is not a saved model"):
            abnn.load(path)
    with pytest.raises(FileFormatError, match="which does not exist"):  # as commands load
        load_model("user/small")
    assert len(server.asked) == asked
    monkeypatch.setattr(socket.socket, "connect", connect)
    assert same(model, abnn.load("user/small"))


def test_what_cannot_be_fetched_or_pushed_says_so(server: HubServer, model: abnn.Attached) -> None:
    with pytest.raises(InputError, match="path: got 'user/none', which is no folder here and cannot be fetched from"):
        abnn.load("user/none")
    with pytest.raises(InputError, match="repo: got 'none'; accepted: a name like"):
        model.push_to_hub("none", token=TOKEN)
    with pytest.raises(AbnnError, match="repo: user/small cannot be pushed to") as error:
        model.push_to_hub("user/small", token="hf_wrong_token_of_somebody")
    assert "hf_wrong" not in str(error.value)
    assert not hub.is_repository(Path("user/repo")) and not hub.is_repository("user/repo/more")


def test_the_card_says_what_is_known(model: abnn.Attached, tmp_path: Path) -> None:
    folder = model.save_pretrained(tmp_path / "model", records=[RECORD])
    card, record = (folder / "README.md").read_text(), json.loads(RECORD.read_text())
    for known in (
        "library_name: abnn",
        f'abnn.load("{tmp_path}/model", backbone)',
        "paper-resnet",
        "cat, dog, a\\|b",
        "Fitted on: made-up pictures.",
        f"at most {model.triage.noticed:.1%} are not accepted",  # type: ignore[union-attr]
        "on average over calibration sets",
        "calibrated on | 60 inputs",
        record["sets"][0]["data_hash"],
        f"accuracy.handwritten digits | {record['metrics']['accuracy']['handwritten digits']:.4f}",
        "Nothing is promised about inputs that are strange",
    ):
        assert known in card, known
    plain = fingerprint(model.save(tmp_path / "plain"))
    assert fingerprint(folder) == plain  # the card is about the model, and no part of it
    unknown = copy.deepcopy(model)
    unknown.triage, unknown.extra = None, {}
    card = (unknown.save_pretrained(tmp_path / "unknown") / "README.md").read_text()
    for missing in ("is not recorded", "not calibrated", "No record of an evaluation"):
        assert missing in card
    renamed = {**record, "sets": [{**record["sets"][0], "name": "a|b"}], "metrics": {"accuracy": {"a|b": 0.5}}}
    (tmp_path / "renamed.json").write_text(json.dumps(renamed))
    card = (model.save_pretrained(tmp_path / "model", records=[tmp_path / "renamed.json"]) / "README.md").read_text()
    assert "| a\\|b | id |" in card and "| accuracy.a\\|b | 0.5000 |" in card  # no cells of their own
    (tmp_path / "odd.json").write_text("[]")
    with pytest.raises(FileFormatError, match="odd.json is not a run record"):
        model.save_pretrained(tmp_path / "other", records=[tmp_path / "odd.json"])
    assert not (tmp_path / "other").exists()
