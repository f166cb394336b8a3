"""Predictions: run in parts that fit into memory, as CUDA graphs, or compiled."""

from abnn.decisions import VERDICTS, verdicts
from abnn.predict.plain import Plain
from abnn.predict.prediction import LabelPrediction, NumberPrediction, Prediction, concatenate
from abnn.predict.run import predict

__all__ = ["VERDICTS", "LabelPrediction", "NumberPrediction", "Plain", "Prediction", "concatenate", "predict"]
__all__ += ["verdicts"]
