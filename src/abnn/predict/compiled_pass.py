"""A prediction's pass, compiled by ``torch.compile``: what lies between two convolutions becomes one kernel.

The compiled function is :meth:`abnn.predict.passes.PredictionPass.outputs`. The noise of its draws is an input, so
other draws and updated weights need no second compilation. On CUDA the compiled pass is captured as one graph like the
ordinary one, see :mod:`abnn.predict.replay`. The compiler's own graphs stay off: they would copy all weights and noise
at every call.
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
from abnn.model.calls import summary
from abnn.model.network import AttachedNetwork
from abnn.predict.compiling import options as layout_options
from abnn.predict.compiling import separate_copy
from abnn.predict.passes import Outputs, PredictionPass
from abnn.predict.replay import Memory

WITHOUT_GRAPHS = {"reduce-overhead": "default", "max-autotune": "max-autotune-no-cudagraphs"}


class CompiledPass:
    """The compiled passes of one model. The first of each kind compiles, which takes seconds to minutes.

    As always with ``torch.compile``, the second batch size is compiled once more, for all sizes, and single inputs once
    more. What cannot be compiled runs without, with a warning.
    """

    def __init__(self, options: dict[str, Any]) -> None:
        self.options = options
        self.off = False
        self.passes: dict[Any, PredictionPass] = {}
        self._memory: Memory | None = None  # of the modules of the passes

    def with_noise(
        self, network: AttachedNetwork, noise: Noise, wanted: str, views: tuple[int, ...]
    ) -> Callable[[Tensor], Outputs]:
        """Return a compiled pass with this noise. Its modules stay the same: the compiler recognises a pass by them."""
        first = noise[0][0]
        assert first is not None
        key = first.shape[1], wanted, views, network.device
        if self._memory is None or not self._memory.is_that_of(network.net):
            self.passes.clear()  # they would use buffers and modules that were replaced
            self._memory = Memory(network.net)
        if key not in self.passes:
            run = self.passes[key] = PredictionPass(network, noise, wanted, views)
            run.compute = partial(self._compute, run, self._compile(network))
        run = self.passes[key]

        def call(x: Tensor) -> Outputs:
            hold(run.run.layers, noise)
            if network.device.type == "cpu":
                run.run.keep_weights()  # outside of the compiled function, which would else be compiled twice
            return run(x)

        return call

    def _compile(self, network: AttachedNetwork) -> Callable[..., Outputs]:
        options = _without_graphs(self.options)
        if not {"mode", "options", "backend"} & set(self.options):
            options["options"] = layout_options(network)
        return torch.compile(separate_copy(PredictionPass.outputs), **options)

    def _compute(self, run: PredictionPass, call: Callable[..., Outputs], rows: Tensor, x: Tensor) -> Outputs:
        if self.off:
            return run.outputs(rows, x)
        try:
            return call(run, rows, x)
        except Exception as error:  # noqa: BLE001 - an error of the network comes up again below
            if run.notes:
                run.run.take_features()
            result = run.outputs(rows, x)
            self.off = True
            cause = getattr(error, "inner_exception", error)  # the inner error says more
            warnings.warn(
                f"Predictions cannot be compiled and run as they are ({summary(cause)}).",
                AbnnWarning,
                stacklevel=7,
            )
            return result


def _without_graphs(options: dict[str, Any]) -> dict[str, Any]:
    """Return options of ``torch.compile`` with CUDA graphs of the compiler switched off."""
    mode, inductor = str(options.get("mode") or "default"), options.get("options")
    if inductor and "triton.cudagraphs" in inductor:
        inductor = {**inductor, "triton.cudagraphs": False}
    if inductor or mode == "default":  # torch.compile takes one of the two
        return {**options, "options": inductor}
    return {**options, "mode": WITHOUT_GRAPHS.get(mode, mode)}
