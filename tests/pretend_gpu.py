"""A pretend GPU: tensors that lie on a device of their own and compute on the CPU.

Mixing them with tensors of the CPU fails, as it would with a real GPU; so does reading them as numpy arrays.
So a machine without a GPU can find the cells that would fail on one. The device is called ``lazy``, which
torch knows and nothing here uses otherwise; speed and memory are those of the CPU.
"""

import sys
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map

GPU = torch.device("lazy", 0)
# Tensors made in inference mode cannot be wrapped. Where it matters what it forbids, other tests look.
torch.inference_mode = torch.no_grad


class OnGpu(torch.Tensor):
    """A tensor of the pretend GPU; ``inner`` holds its values."""

    inner: torch.Tensor

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> "OnGpu":
        return torch.Tensor._make_wrapper_subclass(
            cls,
            inner.size(),
            strides=inner.stride(),
            storage_offset=inner.storage_offset(),
            dtype=inner.dtype,
            layout=inner.layout,
            device=GPU,
        )

    def __init__(self, inner: torch.Tensor) -> None:
        self.inner = inner

    def __tensor_flatten__(self):  # makes nn.Module.to swap parameters in place of setting their data
        return ["inner"], None

    @staticmethod
    def __tensor_unflatten__(inner, meta, size, stride):
        return OnGpu(inner["inner"])

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return compute(func, args, kwargs or {})

    def numpy(self, *args: Any, **kwargs: Any):
        raise TypeError("can't convert a tensor of the GPU to numpy: use .cpu() first")

    __array__ = numpy

    def tolist(self):
        return self.cpu().tolist()

    def __getitem__(self, index):
        return torch.Tensor.__getitem__(self, _lists_to_tensors(index))

    def __setitem__(self, index, value):
        torch.Tensor.__setitem__(self, _lists_to_tensors(index), value)

    def __format__(self, form: str) -> str:
        return format(self.item() if self.dim() == 0 else self.inner, form)

    def __repr__(self) -> str:
        return f"OnGpu({self.inner!r})"


def compute(func, args, kwargs) -> Any:
    """Run one operation on the values, and put the result where a real device would."""
    tensors = [t for t in tree_flatten((args, kwargs))[0] if isinstance(t, torch.Tensor)]
    ours = [t for t in tensors if isinstance(t, OnGpu)]
    wanted = kwargs.get("device")
    if wanted is not None:
        wanted = torch.device(wanted)
        kwargs = {**kwargs, "device": torch.device("cpu") if wanted.type == GPU.type else wanted}
    name = func.overloadpacket.__name__
    # What real devices allow: numbers of no dimension, indices on the CPU, copies between devices.
    foreign = [t for t in tensors if not isinstance(t, OnGpu) and t.dim() > 0 and t.device.type != "meta"]
    if ours and foreign and name not in ("copy_", "_to_copy") and not _indices_alone(name, args):
        raise RuntimeError(f"{name}: expected all tensors to be on the same device, found lazy:0 and cpu")
    result = func(*tree_map(_inner, args), **tree_map(_inner, kwargs))
    on_gpu = wanted.type == GPU.type if wanted is not None else bool(ours)
    if name == "copy_" and not isinstance(args[0], OnGpu):
        on_gpu = False
    if not on_gpu:
        return result
    given = {id(t.inner): t for t in ours}  # an operation in place returns the tensor that it was given
    return tree_map(lambda t: given.get(id(t), OnGpu(t)) if isinstance(t, torch.Tensor) else t, result)


def _indices_alone(name: str, args: tuple) -> bool:
    """Whether only the indices lie on the CPU, which indexing allows."""
    return (
        name.startswith(("index", "_index_put_impl_"))
        and isinstance(args[0], OnGpu)
        and all(
            isinstance(value, OnGpu) or value.dim() == 0
            for value in args[2:3]
            if isinstance(value, torch.Tensor)
        )
        and name in ("index", "index_put", "index_put_", "_index_put_impl_")
    )


def _lists_to_tensors(index: Any) -> Any:
    """Torch would put a list on the device of the tensor, without asking us how."""
    if isinstance(index, tuple):
        return tuple(map(_lists_to_tensors, index))
    return torch.tensor(index) if isinstance(index, (list, range)) else index


def _inner(value: Any) -> Any:
    return value.inner if isinstance(value, OnGpu) else value


class PretendGpu(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return compute(func, args, kwargs or {})


def enable() -> None:
    """From here on, ``train`` and whatever asks for a device finds the pretend GPU."""
    from unseen_lib import training

    torch.__future__.set_swap_module_params_on_conversion(True)
    sys.modules["torch.optim.adam"]._device_dtype_check_for_fused = lambda *args, **kwargs: None
    training.choose_device.__code__ = _choose.__code__
    on_cpu = torch.tensor

    def tensor(data, *, device=None, **more):  # which torch builds in place, without asking us how
        there = device is not None and torch.device(device).type == GPU.type
        made = on_cpu(data, device=None if there else device, **more)
        return made.to(GPU) if there else made

    torch.tensor = tensor
    PretendGpu().__enter__()


def _choose(device=None):
    import torch

    place = torch.device("lazy", 0) if device is None else torch.device(device)
    return place, torch.float32, "a pretend GPU"
