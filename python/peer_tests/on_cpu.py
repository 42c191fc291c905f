"""Gives tests that ask for a CUDA device the CPU: for torch functions that are passed a device, and some of torch.cuda."""

from typing import Any

import torch
from torch.overrides import TorchFunctionMode

CPU = torch.device("cpu")


def on_cpu(value: Any, device: bool = False) -> Any:
    if isinstance(value, torch.device) and value.type == "cuda":
        return CPU
    if isinstance(value, str) and value.split(":")[0] == "cuda":
        return CPU
    return CPU if device and isinstance(value, int) and not isinstance(value, bool) else value


class OnCpu(TorchFunctionMode):
    def __torch_function__(self, function: Any, types: Any, args: tuple = (), kwargs: Any = None) -> Any:
        kwargs = {name: on_cpu(value, name == "device") for name, value in (kwargs or {}).items()}
        if function is torch.Tensor.cuda:
            return args[0]
        first = function is torch.Tensor.to
        return function(*(on_cpu(value, first and i == 1) for i, value in enumerate(args)), **kwargs)


def install() -> None:
    OnCpu().__enter__()
    torch.set_default_device = lambda device: None
    torch.cuda.is_available = lambda: True
    torch.cuda.current_device = lambda: 0
    torch.cuda.get_device_capability = lambda device=None: (9, 0)
    torch.cuda.manual_seed_all = lambda seed: None
    torch.cuda.synchronize = lambda device=None: None
    torch.accelerator.device_count = lambda: 1
    torch.accelerator.set_device_index = lambda device: None
