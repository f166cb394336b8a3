"""What any model says about a batch, as arrays: an exported one by onnxruntime, others by torch."""

from __future__ import annotations

from typing import Any

from abnn.export.artefact import Answers, Exported
from abnn.export.schema import SAID


def ask(model: Any, x: Any, draws: int | None = None, seed: int | None = None) -> Answers:
    """Return what a model says; draws and seed None: as its thresholds were calibrated, or its usual ones."""
    if isinstance(model, Exported):
        return model.predict(x, draws, seed)
    from abnn.triage.calibrate import draws_and_seed

    draws, seed = draws_and_seed(model, draws, seed)
    prediction = model.predict(x, draws=draws, seed=seed)
    triage = getattr(model, "triage", None)
    said: dict[str, Any] = {"score": prediction.score, "samples": prediction.samples}
    said |= {name: getattr(prediction, name) for name in SAID[prediction.distribution]}
    if prediction.distribution != "numbers":
        said["stated"] = None if triage is None else triage.probabilities(prediction)
    elif prediction.noise is not None:
        said |= {name: getattr(prediction, name) for name in ("std", "aleatoric", "epistemic")}
    verdict = None
    if triage is not None:
        judgement = triage(prediction)
        said["score"], verdict = judgement.score, judgement.verdict
    arrays: dict[str, Any] = {name: None if each is None else _array(each) for name, each in said.items()}
    parts = {name: _array(part) for name, part in (prediction.parts or {}).items()}
    return Answers(**arrays, parts=parts or None, verdict=verdict, triage=triage)


def _array(tensor: Any) -> Any:
    return (tensor.float() if tensor.is_floating_point() else tensor).cpu().numpy()
