"""What any model says about a batch, as arrays: an exported one by onnxruntime, others by torch."""

from __future__ import annotations

from typing import Any

from abnn.export.artefact import Answers, Exported


def ask(model: Any, x: Any, draws: int | None = None, seed: int | None = None) -> Answers:
    """Return what a model of classes says; draws and seed None: as its thresholds were calibrated, or its usual ones."""
    if isinstance(model, Exported):
        return model.predict(x, draws, seed)
    from abnn.triage.calibrate import draws_and_seed

    draws, seed = draws_and_seed(model, draws, seed)
    prediction = model.predict(x, draws=draws, seed=seed)
    triage, stated, verdict, score = getattr(model, "triage", None), None, None, prediction.score
    if triage is not None:
        judgement = triage(prediction)
        score, verdict, stated = judgement.score, judgement.verdict, triage.probabilities(prediction)
    parts = {name: part.float().cpu().numpy() for name, part in (prediction.parts or {}).items()}
    score, samples, label, probs = (
        each.cpu().numpy()
        for each in (score.float(), prediction.samples.float(), prediction.label, prediction.probs.float())
    )
    stated = None if stated is None else stated.float().cpu().numpy()
    return Answers(score, samples, parts or None, verdict, label, None, probs, stated, triage=triage)
