"""Gradients of rotations in place, for torch."""

from typing import Any, Callable, Tuple

import torch


class _RotatedInPlace(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any, run: Callable[..., Any]) -> Any:
        ctx.run = run
        run(x, False)
        return x

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Tuple[Any, Any]:
        gradient = gradient.clone()
        ctx.run(gradient, True)
        return gradient, None


def rotated_in_place(x: Any, run: Callable[..., Any]) -> Any:
    """run(x, conjugate) rotates x in place. As in flash-attn, x may be a leaf."""
    return _RotatedInPlace.apply(x, run)
