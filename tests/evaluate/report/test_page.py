"""The page: complete, self-contained, well-formed and safe."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from abnn.errors import InputError
from abnn.evaluate.evaluation import Evaluation
from abnn.evaluate.report import measure, write_report
from abnn.evaluate.report.figures import on_one_scale, score_limits
from abnn.evaluate.report.measure import METRICS, as_text, judge

from .samples import make_evaluation, make_pair

VOID = {"meta", "link", "img", "br"}
EVIL = "<script>alert('x')</script>\"><img src=http://evil.example/x onerror=alert(1)>&amp;"


@pytest.fixture(autouse=True)
def few_resamples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "MOST_RESAMPLES", 10)
    monkeypatch.setattr(measure, "FEWEST_RESAMPLES", 10)


class Page(HTMLParser):
    """Elements with their attributes, after checking that every start tag has its end tag."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.source = path.read_text()
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.feed(self.source)
        self.close()
        assert self.open == []
        self.text = " ".join(" ".join(self.words).split())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] != "style":
            self.words.append(data)

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]


def write(tmp_path: Path, evaluations: list[Evaluation], **more: object) -> Page:
    return Page(write_report(evaluations, tmp_path / "page.html", "A title", **more))  # type: ignore[arg-type]


def check_self_contained(page: Page) -> None:
    for tag, attributes in page.elements:
        assert tag not in {"script", "iframe", "object", "embed", "base", "form"}
        for name, value in attributes.items():
            assert not name.startswith("on")
            if name in {"src", "href", "xlink:href", "action", "poster", "srcset"}:
                assert value is not None and value.startswith(("data:", "#")), (tag, name, value)
    style = re.findall(r"<style>(.*?)</style>", page.source, re.DOTALL)
    assert len(style) == 1 and "@import" not in style[0] and "url(" not in style[0]


def check_structure(page: Page) -> None:
    assert page.source.startswith("<!DOCTYPE html>")
    assert page.all("html") == [{"lang": "en"}]
    assert {"name": "viewport", "content": "width=device-width, initial-scale=1"} in page.all("meta")
    levels = [int(tag[1]) for tag, _ in page.elements if re.fullmatch(r"h[1-6]", tag)]
    assert levels[0] == 1 and levels.count(1) == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))
    ids = Counter(value["id"] for _, value in page.elements if "id" in value)
    assert max(ids.values()) == 1
    for link in page.all("a"):
        assert (link["href"] or "").removeprefix("#") in ids
    for tag in ("svg", "img"):
        for attributes in page.all(tag):
            assert len(attributes.get("aria-label") or attributes.get("alt") or "") > 10
    assert all(svg["role"] == "img" for svg in page.all("svg"))


def test_a_comparison_has_everything(tmp_path: Path) -> None:
    pair = make_pair()
    page = write(tmp_path, pair, intro="First part.\n\nSecond part.", class_names=list("abcdefghij"))
    check_structure(page)
    check_self_contained(page)
    assert "http" not in page.source
    assert [a["href"] for a in page.all("a")] == [f"#{each['id']}" for each in page.all("section")]
    assert len(page.all("section")) == 8
    # ordered, histograms, verdicts and reliability per model; ROC per other set; two risk-coverage panels
    assert len(page.all("svg")) == 2 + 2 + 2 + 2 + 2 + 2
    assert sum(attributes.get("class") == "intro" for attributes in page.all("p")) == 2
    for words in ("plain network", "attached network", "Difference", "AUROC semi / full", "Brier score", "AURC"):
        assert words in page.text
    assert len([c for c in page.all("span") if c.get("class") in {"cell", "cell wanted"}]) == 4 * 9
    assert page.text.count("Least uncertain") == 2 * 3

    for numbers in measure.measure(pair).by_model:
        for metric in ("accuracy_id", "auroc_id_semi", "auroc_semi_full", "auroc_id_full", "accuracy_semi"):
            assert as_text(numbers[metric, ""].estimate, METRICS[metric]) in page.source


@pytest.mark.no_cover
def test_figures_are_written_beside_the_page(tmp_path: Path) -> None:
    """That the same input gives the same bytes is tested with ``abnn report``, in two processes."""
    write_report([make_evaluation(tiers=("id", "full"))], tmp_path / "page.html", "A title", figures=True)
    files = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.*"))
    assert len(files) == 1 + 2 * 7  # the page, and each figure twice
    assert files[:2] == ["page.html", "page_figures/01-ordered-uncertainty-attached-network.png"]


@pytest.mark.usefixtures("one_figure")
def test_hostile_strings_stay_text(tmp_path: Path) -> None:
    evaluation = make_evaluation()
    sets = tuple(replace(s, name=f"{s.tier} {EVIL}", skipped=(EVIL,), data_hash=EVIL) for s in evaluation.sets)
    sets = tuple(replace(s, scores={EVIL: s.scores["entropy"]}) for s in sets)
    hostile = replace(evaluation, name=EVIL, sets=sets, score=EVIL, config={EVIL: EVIL}, seconds={EVIL: 1.0})
    path = write_report([hostile], tmp_path / "page.html", EVIL, intro=EVIL, class_names=[EVIL] * 10)
    page = Page(path)
    check_structure(page)
    check_self_contained(page)
    assert not any(image.get("src", "").startswith("http") for image in page.all("img"))  # type: ignore[union-attr]
    assert "<script>alert('x')</script>" in page.text
    assert "says <script>alert('x')</scr" in page.text and "&amp;lt;" not in page.source  # escaped once


@pytest.mark.no_cover
def test_one_model(tmp_path: Path) -> None:
    page = write(tmp_path, [make_evaluation()])
    check_structure(page)
    assert "Difference" not in page.text
    assert len(page.all("svg")) == 1 + 1 + 1 + 2 + 2 + 1


@pytest.mark.usefixtures("one_figure")
def test_without_thresholds_there_are_no_verdicts(tmp_path: Path) -> None:
    page = write(tmp_path, [make_evaluation(thresholds=None)])
    check_structure(page)
    assert "No limits were chosen for attached network" in page.text
    assert not any("verdict" in (span.get("class") or "") for span in page.all("span"))
    assert "the best three groups" in page.text


def test_a_threshold_that_refuses_nothing_can_be_reported(tmp_path: Path) -> None:
    page = write(tmp_path, [make_evaluation(tiers=("id",), thresholds=(0.15, float("inf")))])
    assert "notice above 0.15, reject above inf" in page.text


@pytest.mark.usefixtures("one_figure")
def test_id_alone(tmp_path: Path) -> None:
    page = write(tmp_path, [make_evaluation(tiers=("id",))])
    check_structure(page)
    assert "was shown no semi and no full inputs" in page.text
    assert "This needs an id set and at least one other set" in page.text
    assert "The three groups need all three tiers" in page.text
    assert "AUROC id / semi" not in page.text and "Accuracy on id" in page.text


@pytest.mark.usefixtures("one_figure")
@pytest.mark.parametrize("tiers", [("full",), ("semi", "full")])
def test_any_choice_of_tiers(tiers: tuple[str, ...], tmp_path: Path) -> None:
    page = write(tmp_path, [make_evaluation(tiers=tiers)])
    check_structure(page)
    assert "are left out" in page.text


@pytest.mark.usefixtures("one_figure")
def test_models_on_different_sets(tmp_path: Path) -> None:
    page = write(tmp_path, [make_evaluation("a", tiers=("id",)), make_evaluation("b", tiers=("id", "full"))])
    check_structure(page)
    assert "Difference" not in page.text and "not defined here" in page.source


@pytest.mark.usefixtures("one_figure")
def test_a_thousand_classes(tmp_path: Path) -> None:
    page = write(tmp_path, [make_evaluation(classes=1000)], class_names=[f"kind {n}" for n in range(1000)])
    check_structure(page)
    assert re.search(r"says kind \d{3}", page.text)


@pytest.mark.usefixtures("one_figure")
def test_skipped_inputs_are_counted_and_named(tmp_path: Path) -> None:
    evaluation = make_evaluation()
    lines = ("a/broken.png: truncated", "b/text.png: no image")
    sets = (replace(evaluation.sets[0], skipped=lines), *evaluation.sets[1:])
    page = write(tmp_path, [replace(evaluation, sets=sets)])
    assert "2 inputs of handwritten could not be read and were skipped" in page.text
    assert all(line in page.text for line in lines)


@pytest.mark.usefixtures("one_figure")
def test_an_error_keeps_the_old_page(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    write_report([make_evaluation()], page, "A title")
    before = page.read_bytes()
    with pytest.raises(InputError):
        write_report([], page, "A title")
    assert page.read_bytes() == before and list(tmp_path.iterdir()) == [page]


def test_numbers_are_printed_with_sign_and_unit() -> None:
    percent, plain = METRICS["auroc"], METRICS["brier"]
    assert as_text(0.9764, percent) == "97.6\u202f%"
    assert as_text(-0.0004, percent, signed=True) == "0.0\u202fpoints"
    assert as_text(-0.021, percent, signed=True) == "\u22122.1\u202fpoints"
    assert as_text(0.021, plain, signed=True) == "+0.021"


@pytest.mark.parametrize(
    ("metric", "low", "high", "word"),
    [
        ("auroc", 0.01, 0.02, "better"),
        ("auroc", -0.02, -0.01, "worse"),
        ("ece", -0.02, -0.01, "better"),
        ("ece", 0.01, 0.02, "worse"),
        ("ece", -0.01, 0.02, "no clear difference"),
        ("auroc", 0.0, 0.0, "no clear difference"),
    ],
)
def test_a_difference_is_judged_by_its_interval(metric: str, low: float, high: float, word: str) -> None:
    from abnn.metrics import Interval

    assert judge(Interval(float(np.mean([low, high])), low, high, 0.95), METRICS[metric]) == word


@pytest.mark.usefixtures("one_figure")
def test_a_clear_loss_of_accuracy_stands_first_in_a_red_box(tmp_path: Path) -> None:
    plain, attached = make_pair()
    assert 'class="alert"' not in write_report([plain, plain_copy(plain)], tmp_path / "same.html", "T").read_text()
    wrong = replace(attached.sets[0], probs=np.roll(attached.sets[0].probs, 1, axis=1))
    page = write_report(
        [plain, replace(attached, sets=(wrong, *attached.sets[1:]))], tmp_path / "page.html", "T"
    ).read_text()
    box = page.index('<p class="alert" role="alert">Accuracy on handwritten is ')
    assert "points lower: attached network, compared with plain network." in page
    assert box < page.index("<nav") < page.index("<svg") < page.index("The most important numbers")


def plain_copy(evaluation: Evaluation) -> Evaluation:
    return replace(evaluation, name="the same")


def test_scores_of_different_kinds_are_drawn_on_one_scale() -> None:
    plain, attached = make_pair()
    sets = tuple(replace(each, scores={"energy": 30 * each.scores["entropy"] - 4}) for each in attached.sets)
    other = replace(attached, score="energy", sets=sets, thresholds=(0.5, 14.0))
    one, two = on_one_scale([plain, other])
    same = on_one_scale([plain, attached])
    assert one.score == two.score and same == [plain, attached]
    for each in (one, two):
        assert each.thresholds is not None and each.thresholds[0] == pytest.approx(1)
        assert np.median(each.scores("id")) == pytest.approx(0, abs=1e-6)
    limits = score_limits([one, two])
    assert limits[one.name] == limits[two.name]
    assert on_one_scale([replace(plain, thresholds=None), other])[1] is other  # there is no common unit
