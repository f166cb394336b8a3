"""How a prediction runs: in parts that fit into memory, as CUDA graphs, compiled."""

from abnn.predict.prediction import Plain, Prediction, predict

__all__ = ["Plain", "Prediction", "predict"]
