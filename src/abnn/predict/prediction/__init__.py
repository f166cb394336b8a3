"""Predictions for a batch, of classes, labels or numbers, with everything that scores and verdicts need."""

from abnn.predict.prediction.classes import PREDICTIONS, Prediction, concatenate
from abnn.predict.prediction.labels import LabelPrediction
from abnn.predict.prediction.numbers import NumberPrediction

__all__ = ["PREDICTIONS", "LabelPrediction", "NumberPrediction", "Prediction", "concatenate"]
