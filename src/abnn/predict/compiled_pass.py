"""A prediction's pass, compiled by ``torch.compile``: norm, ReLU and sums between the convolutions become single kernels.

Compiled is :func:`abnn.predict.passes.outputs`, with the noise of its draws as an input, so that other draws and updated weights need
no second compilation. On CUDA the compiled pass is captured as one graph like the ordinary one, see :mod:`abnn.predict.replay`;
graphs of the compiler's own would copy all weights and noise at every call, and stay switched off.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from abnn.errors import AbnnWarning
from abnn.model.attached_block import Notes
from abnn.model.blocks import summary
from abnn.predict.compiling import of_its_own
from abnn.predict.compiling import options as layout_options
from abnn.predict.passes import Outputs, outputs

if TYPE_CHECKING:
    from abnn.model.attached import Attached

WITHOUT_GRAPHS = {"reduce-overhead": "default", "max-autotune": "max-autotune-no-cudagraphs"}


class CompiledPass:
    """The passes of one model; the first of each kind compiles, which takes from seconds to minutes.

    Batches of another size are compiled once more, for all sizes, and single inputs once more, as ``torch.compile`` does
    by itself. What cannot be compiled runs as it is, with a warning.
    """

    def __init__(self, **options: Any) -> None:
        self.options = options
        self.off = False
        self._call: Callable[..., Outputs] | None = None

    def __reduce__(self) -> Any:  # copies of a model compile their own
        return _rebuild, (self.options,)

    def __call__(self, model: Attached, notes: Notes | None, x: Tensor) -> Outputs:
        if self.off:
            return outputs(model, notes, x)
        if self._call is None:
            chosen = _without_graphs(self.options)
            if not {"mode", "options", "backend"} & set(self.options):
                chosen["options"] = layout_options(model)
            self._call = torch.compile(of_its_own(outputs), **chosen)
        try:
            return self._call(model, notes, x)
        except Exception as error:  # noqa: BLE001 - of the network or of the compiler, which the ordinary pass tells apart
            if notes is not None:
                notes.forget()
            result = outputs(model, notes, x)
            self.off = True
            cause = getattr(error, "inner_exception", error)  # what the compiler wraps says more than its wrapping
            warnings.warn(
                f"Predictions cannot be compiled and run as they are ({summary(cause)}).",
                AbnnWarning,
                stacklevel=6,
            )
            return result


def _rebuild(options: dict[str, Any]) -> CompiledPass:
    return CompiledPass(**options)


def _without_graphs(options: dict[str, Any]) -> dict[str, Any]:
    mode, inductor = str(options.get("mode") or "default"), options.get("options")
    if inductor and "triton.cudagraphs" in inductor:
        inductor = {**inductor, "triton.cudagraphs": False}
    if inductor or mode == "default":  # torch.compile takes one of the two
        return {**options, "options": inductor}
    return {**options, "mode": WITHOUT_GRAPHS.get(mode, mode)}
