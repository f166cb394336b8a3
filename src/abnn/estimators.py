"""scikit-learn estimators that know when not to be trusted: a small network, or one of yours, attached, fitted and calibrated.

classifier = AbnnClassifier().fit(X, y)
classifier.predict(X), classifier.predict_proba(X)          # as always
classifier.verdict(X)                                       # "accept", "notice" or "reject" for each row
"""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Sequence
from itertools import pairwise
from numbers import Integral, Real
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.linear_model import RidgeCV
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, column_or_1d, validate_data
from torch import Tensor, nn

from abnn.attached import Attached, attach
from abnn.errors import AbnnWarning, InputError, NotFittedError, at_least_one, explain, not_negative
from abnn.model.calls import summary
from abnn.predict import NumberPrediction, Prediction
from abnn.train.fit import fit
from abnn.triage import TriageConfig, calibrate
from abnn.triage.thresholds import least_count

BATCH, RATE, FEWEST_STEPS = 64, 1e-2, 200
DECAYS = (1e-3, 1.0, 3.0, 10.0)
"""Weight decays to choose from, for ``FEWEST_STEPS`` steps; less for each of more steps."""
FOLDS, MANY = 3, 1000  # parts of the rows that a decay is chosen on; of more rows one part is enough
PENALTIES = np.logspace(-1, 5, 13)  # of ridge regression


class _Estimator(BaseEstimator):
    """What both estimators share.

    module         a network that maps float32 rows [B, F] to the task's outputs; it is copied. None: linear layers with ReLU, of
                   the sizes ``hidden``, which see standardised columns; cross-validation chooses their weight decay
    hidden         the sizes of its hidden layers
    epochs         of its training, at least 200 steps; 0: a ``module`` stays as it is
    fit_epochs     of its attachments, see :func:`abnn.fit`; 0: the score alone is learnt, in seconds
    held_out       the share of rows on which thresholds, probabilities and widths are calibrated; where that is fewer than 19,
                   there are no verdicts
    random_state   the seed of everything; None or a RandomState: a seed at random, as in scikit-learn
    """

    task: str
    _decays: tuple[float, ...] = DECAYS

    def __init__(
        self,
        module: nn.Module | None = None,
        hidden: tuple[int, ...] = (50, 50),
        epochs: int = 40,
        fit_epochs: int | None = 0,
        held_out: float = 0.2,
        random_state: Any = 0,
    ) -> None:
        self.module = module
        self.hidden = hidden
        self.epochs = epochs
        self.fit_epochs = fit_epochs
        self.held_out = held_out
        self.random_state = random_state

    # -- fitting ------------------------------------------------------------------------------------------------------

    def _fit(self, X: np.ndarray, y: Tensor, outputs: int) -> None:
        """Train, attach, fit and calibrate; y: targets as the task takes them."""
        self._check_settings()
        if len(X) < 2:
            raise InputError(explain("X", "1 sample", "at least two rows"))
        whole = isinstance(self.random_state, Integral)  # what else scikit-learn takes gives a seed
        seed = int(self.random_state if whole else check_random_state(self.random_state).randint(2**31))
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)  # the CPU's alone, which is what comes back
            x = torch.from_numpy(np.array(X))
            order = torch.randperm(len(x))
            count = int(self.held_out * len(x))
            count = count if count >= least_count(TriageConfig().noticed) else 0
            held, rest = order[:count], order[count:]
            if self.module is None:
                network = self._own_network(x[rest], y[rest], outputs)
            else:
                network = copy.deepcopy(self.module)
                _check_outputs(network, x[rest[:1]], outputs)
                self._train(network, x[rest], y[rest], DECAYS[0])
            network.eval()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", AbnnWarning)  # about few rows: predictions and verdicts say the rest
                model = attach(network, x[rest[:1]], task=self.task, seed=seed)
                batches = list(zip(x[rest].split(BATCH), y[rest].split(BATCH)))
                fit(model, batches, epochs=self.fit_epochs, seed=seed, progress=False)
                if count:
                    calibrate(model, [(x[held], y[held])], progress=False)
        self.model_: Attached = model

    def _check_settings(self) -> None:
        if not (self.module is None or isinstance(self.module, nn.Module)):
            raise InputError(
                explain("module", type(self.module).__name__, "a network of torch, or None for an own one")
            )
        if not isinstance(self.hidden, Sequence) or isinstance(self.hidden, str):
            accepted = "the sizes of layers, such as (50, 50)"
            raise InputError(explain("hidden", repr(self.hidden), accepted, "Pass a tuple or list."))
        for size in self.hidden:
            at_least_one("hidden", size)
        not_negative("epochs", self.epochs)
        if self.fit_epochs is not None:
            not_negative("fit_epochs", self.fit_epochs, ", or None")
        if not (isinstance(self.held_out, Real) and 0 <= self.held_out < 1):
            raise InputError(explain("held_out", repr(self.held_out), "a share of the rows, from 0 to less than 1"))

    def _own_network(self, x: Tensor, y: Tensor, outputs: int) -> nn.Module:
        """Return the network of ``hidden`` layers, trained with the decay that does best on rows that were left out."""
        decays = [each for each in self._decays if self.hidden or each < math.inf]
        if not self.epochs or len(decays) == 1 or len(x) < 2 * FOLDS:
            return self._learn(x, y, outputs, decays[0])
        order = torch.randperm(len(x))
        parts = order.tensor_split(FOLDS)[: FOLDS if len(x) <= MANY else 1]
        losses = dict.fromkeys(decays, 0.0)
        for part in parts:
            rest = order[~torch.isin(order, part)]
            for decay in decays:
                network = self._learn(x[rest], y[rest], outputs, decay).eval()
                with torch.no_grad():
                    losses[decay] += len(part) * self._loss(network(x[part]), y[part]).item()
        return self._learn(x, y, outputs, min(losses, key=losses.__getitem__))

    def _learn(self, x: Tensor, y: Tensor, outputs: int, decay: float) -> nn.Module:
        """Return a new network, trained with this decay.

        It is in float64, as its rows are: so what it says of a row does not depend on the rows beside it, and a column of
        large numbers that differ by little keeps what they differ in. Standardised rows are learnt from in float32.
        """
        standard = Standard(x)
        learnt = self._learn_standardised(standard(x).float(), y, outputs, decay)
        return nn.Sequential(standard, *learnt).double()

    def _learn_standardised(self, x: Tensor, y: Tensor, outputs: int, decay: float) -> list[nn.Module]:
        """Return the layers of a new network behind the standardisation."""
        layers, last = self._layers(x.shape[1], outputs)
        self._train(nn.Sequential(*layers, last), x, y, decay)
        return [*layers, last]

    def _layers(self, columns: int, outputs: int) -> tuple[list[nn.Module], nn.Linear]:
        """Return the hidden layers and the last one."""
        sizes, layers = [columns, *self.hidden], list[nn.Module]()
        for size, following in pairwise(sizes):
            layers += [nn.Linear(size, following), nn.ReLU()]
        return layers, nn.Linear(sizes[-1], outputs)

    def _train(self, network: nn.Module, x: Tensor, y: Tensor, decay: float) -> None:
        if not self.epochs:
            return
        learning = [parameter for parameter in network.parameters() if parameter.requires_grad]
        single = len(x) > BATCH and len(x) % BATCH == 1  # batch normalisation cannot learn from a last batch of one
        batches = -(-len(x) // BATCH) - single
        epochs = max(int(self.epochs), -(-FEWEST_STEPS // batches))
        weight_decay = decay * FEWEST_STEPS / (epochs * batches)
        optimizer = torch.optim.AdamW(learning, RATE, weight_decay=weight_decay)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, RATE, total_steps=epochs * batches)
        network.train()
        for _ in range(epochs):
            for rows in torch.randperm(len(x))[: len(x) - single].split(BATCH):
                optimizer.zero_grad()
                self._loss(network(x[rows]), y[rows]).backward()
                optimizer.step()
                schedule.step()

    def _loss(self, outputs: Tensor, y: Tensor) -> Tensor:
        raise NotImplementedError

    # -- prediction ---------------------------------------------------------------------------------------------------

    def _predict(self, X: Any) -> Prediction:
        check_is_fitted(self, "model_")
        return self.model_.predict(torch.from_numpy(np.array(validate_data(self, X, reset=False, dtype=self._type))))

    @property
    def _type(self) -> Any:
        """The type of rows: a ``module`` takes float32."""
        return np.float64 if self.module is None else np.float32

    def uncertainty(self, X: Any) -> np.ndarray:
        """Return the score of each row, larger = more uncertain."""
        return self._predict(X).score.numpy()

    def verdict(self, X: Any) -> np.ndarray:
        """Return "accept", "notice" or "reject" for each row; an error where there were too few rows to calibrate."""
        p = self._predict(X)
        if p.triage is None:
            least = least_count(TriageConfig().noticed)
            in_all = f", which are {math.ceil(least / self.held_out)} in all" if self.held_out else ""
            accepted = f"at least {least} held-out rows{in_all}"
            fix = "Fit on more rows, or with a larger held_out."
            raise NotFittedError(explain("verdict", "an estimator with too few rows to calibrate", accepted, fix))
        return np.array(p.verdict)


def _check_outputs(network: nn.Module, x: Tensor, outputs: int) -> None:
    """Raise an error for a network that fails on a row, or has not one output for each class or number of ``y``."""
    try:
        with torch.no_grad():
            made = network.eval()(x)
    except Exception as error:
        actual = f"a network that fails on a row of X, float32 and of shape {tuple(x.shape)}: {summary(error)}"
        raise InputError(explain("module", actual, "one that takes such rows")) from error
    if isinstance(made, Tensor) and made.numel() != outputs:
        accepted = f"{outputs}, one for each class or number of y"
        raise InputError(explain("module", f"a network with {made.numel()} outputs for one row", accepted))


class Standard(nn.Module):
    """Columns less their mean, in units of their standard deviation on some rows."""

    def __init__(self, x: Tensor) -> None:
        super().__init__()
        spread = x.std(0, correction=0)
        constant = (x == x[:1]).all(0) | (spread == 0)
        self.mean = nn.Buffer(x.mean(0))
        self.spread = nn.Buffer(torch.where(constant, torch.ones_like(spread), spread))

    def forward(self, x: Tensor) -> Tensor:
        return (x - self.mean) / self.spread


class Beside(nn.Module):
    """What layers make of rows, and these rows: the layer that follows reads both."""

    def __init__(self, layers: nn.Module) -> None:
        super().__init__()
        self.layers = layers

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.layers(x), x], dim=1)


class AbnnClassifier(ClassifierMixin, _Estimator):
    """A classifier; a ``module`` gives one logit for each class, in the order of ``classes_``."""

    task = "classification"

    def fit(self, X: Any, y: Any) -> AbnnClassifier:
        """Learn from rows and their classes."""
        X, y = validate_data(self, X, y, dtype=self._type)
        try:
            check_classification_targets(y)
            self.classes_, numbers = np.unique(y, return_inverse=True)
        except TypeError as error:  # they cannot be sorted
            fix = "Leave out rows without a label."
            raise InputError(explain("y", "labels of several types", "all texts, or all numbers", fix)) from error
        if len(self.classes_) < 2:
            raise InputError(explain("y", "one class", "at least two classes"))
        self._fit(X, torch.from_numpy(numbers.astype(np.int64)), len(self.classes_))
        return self

    def predict_proba(self, X: Any) -> np.ndarray:
        """Return a probability for each class; they come true on data like the held-out rows."""
        p = self._predict(X)
        probs = (p.probs if p.stated is None else p.stated).double()
        return (probs / probs.sum(1, keepdim=True)).numpy()

    def predict(self, X: Any) -> np.ndarray:
        """Return the most probable class of each row."""
        numbers = self.predict_proba(X).argmax(1)  # says first where nothing was fitted
        return self.classes_[numbers]

    def _loss(self, outputs: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(outputs, y)


class AbnnRegressor(RegressorMixin, _Estimator):
    """A regressor for one or several numbers; a ``module`` gives one output for each.

    Without a ``module``, the layers learn what ridge regression leaves over. Where they do no better than nothing on rows that were left
    out, ridge regression predicts alone.
    """

    task = "regression"
    _decays = (*DECAYS, math.inf)  # the last: the layers add nothing

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags

    def fit(self, X: Any, y: Any) -> AbnnRegressor:
        """Learn from rows and their targets, [n] or [n, D]."""
        X, y = validate_data(self, X, y, dtype=self._type, multi_output=True, y_numeric=True)
        targets = torch.from_numpy(np.array(y, dtype=np.float64))
        if targets.ndim == 2 and targets.shape[1] == 1:
            column_or_1d(y, warn=True)
        self._one = targets.ndim == 1
        targets = targets[:, None] if self._one else targets
        spread = targets.std(0, correction=0)
        self._unit = torch.where(spread > 0, spread, torch.ones_like(spread))
        self._centre = targets.mean(0)
        targets = targets if self.module is not None else (targets - self._centre) / self._unit
        self._fit(X, targets.float(), targets.shape[1])
        return self

    def predict(self, X: Any, return_std: bool = False) -> Any:
        """Return the predicted numbers, and where asked for their standard deviations."""
        p = self._numbers(X)
        mean = self._out(p.mean, centred=True)
        return (mean, self._out(p.std)) if return_std else mean

    def predict_interval(self, X: Any, coverage: float = 0.9) -> tuple[np.ndarray, np.ndarray]:
        """Return lower and upper ends, between which targets lie with this probability."""
        low, high = self._numbers(X).interval(coverage)
        return self._out(low, centred=True), self._out(high, centred=True)

    def _numbers(self, X: Any) -> NumberPrediction:
        p = self._predict(X)
        assert isinstance(p, NumberPrediction)
        return p

    def _out(self, values: Tensor, centred: bool = False) -> np.ndarray:
        """In units of the targets, and of their shape."""
        values = values.double()  # which rounds no more than the network did
        if self.module is None:
            values = values * self._unit + (self._centre if centred else 0)
        return (values[:, 0] if self._one else values).numpy()

    def _loss(self, outputs: Tensor, y: Tensor) -> Tensor:
        return F.mse_loss(outputs.reshape(y.shape), y)

    def _learn_standardised(self, x: Tensor, y: Tensor, outputs: int, decay: float) -> list[nn.Module]:
        if not self.hidden:
            return super()._learn_standardised(x, y, outputs, decay)
        line = _ridge(x, y)
        layers, last = self._layers(x.shape[1], outputs)
        nn.init.zeros_(last.weight)
        nn.init.zeros_(last.bias)
        if decay < math.inf:
            self._train(nn.Sequential(*layers, last), x, y - line(x), decay)
        both = nn.Linear(last.in_features + line.in_features, outputs)
        with torch.no_grad():
            both.weight.copy_(torch.cat([last.weight, line.weight], dim=1))
            both.bias.copy_(last.bias + line.bias)
        return [Beside(nn.Sequential(*layers)), both]


def _ridge(x: Tensor, y: Tensor) -> nn.Linear:
    """Return ridge regression as a layer without gradients; leave-one-out errors choose the penalty of each number."""
    found = RidgeCV(PENALTIES, alpha_per_target=True).fit(x.double().numpy(), y.double().numpy())
    layer = nn.Linear(x.shape[1], y.shape[1]).requires_grad_(False)
    layer.weight.copy_(torch.from_numpy(np.reshape(found.coef_, layer.weight.shape)))
    layer.bias.copy_(torch.from_numpy(np.reshape(found.intercept_, layer.bias.shape)))
    return layer
