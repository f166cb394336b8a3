"""A prediction's pass, compiled by ``torch.compile``: norm, ReLU and sums between the convolutions become single kernels.

Compiled is :meth:`abnn.predict.passes.PredictionPass.outputs`, with the noise of its draws as an input, so that other draws and updated weights need
no second compilation. On CUDA the compiled pass is captured as one graph like the ordinary one, see :mod:`abnn.predict.replay`;
graphs of the compiler's own would copy all weights and noise at every call, and stay switched off.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from abnn.bayes.noise import Noise, hold
from abnn.errors import AbnnWarning
from abnn.model.blocks import summary
from abnn.model.network import AttachedNetwork
from abnn.predict.compiling import of_its_own
from abnn.predict.compiling import options as layout_options
from abnn.predict.passes import Outputs, PredictionPass
from abnn.predict.replay import Memory

WITHOUT_GRAPHS = {"reduce-overhead": "default", "max-autotune": "max-autotune-no-cudagraphs"}


class CompiledPass:
    """The passes of one model; the first of each kind compiles, which takes from seconds to minutes.

    Batches of another size are compiled once more, for all sizes, and single inputs once more, as ``torch.compile`` does
    by itself. What cannot be compiled runs as it is, with a warning.
    """

    def __init__(self, options: dict[str, Any]) -> None:
        self.options = options
        self.off = False
        self.passes: dict[Any, PredictionPass] = {}
        self._memory: Memory | None = None  # of the modules that they were made of

    def holding(
        self, network: AttachedNetwork, noise: Noise, wanted: str, views: tuple[int, ...]
    ) -> Callable[[Tensor], Outputs]:
        """Return a compiled pass that holds some noise: compilers know a pass by its modules, so these stay the same."""
        first = noise[0][0]
        assert first is not None
        key = first.shape[1], wanted, views, network.device
        if self._memory is None or not self._memory.is_that_of(network.net):
            self.passes.clear()  # they would go on with buffers and modules that were replaced
            self._memory = Memory(network.net)
        if key not in self.passes:
            run = self.passes[key] = PredictionPass(network, noise, wanted, views)
            run.compute = partial(self._compute, run, self._compile(network))
        run = self.passes[key]

        def call(x: Tensor) -> Outputs:
            hold(run.run.layers, noise)
            if network.device.type == "cpu":
                run.run.keep_weights()  # made outside, whatever the number of inputs, or it would be compiled twice
            return run(x)

        return call

    def _compile(self, network: AttachedNetwork) -> Callable[..., Outputs]:
        chosen = _without_graphs(self.options)
        if not {"mode", "options", "backend"} & set(self.options):
            chosen["options"] = layout_options(network)
        return torch.compile(of_its_own(PredictionPass.outputs), **chosen)

    def _compute(self, run: PredictionPass, call: Callable[..., Outputs], rows: Tensor, x: Tensor) -> Outputs:
        if self.off:
            return run.outputs(rows, x)
        try:
            return call(run, rows, x)
        except Exception as error:  # noqa: BLE001 - of the network or of the compiler, which the ordinary pass tells apart
            if run.notes:
                run.run.take_features()
            result = run.outputs(rows, x)
            self.off = True
            cause = getattr(error, "inner_exception", error)  # what the compiler wraps says more than its wrapping
            warnings.warn(
                f"Predictions cannot be compiled and run as they are ({summary(cause)}).",
                AbnnWarning,
                stacklevel=7,
            )
            return result


def _without_graphs(options: dict[str, Any]) -> dict[str, Any]:
    mode, inductor = str(options.get("mode") or "default"), options.get("options")
    if inductor and "triton.cudagraphs" in inductor:
        inductor = {**inductor, "triton.cudagraphs": False}
    if inductor or mode == "default":  # torch.compile takes one of the two
        return {**options, "options": inductor}
    return {**options, "mode": WITHOUT_GRAPHS.get(mode, mode)}
