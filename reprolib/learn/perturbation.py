"""A model seen at weights moved along a direction, while its weights stay as they are.

The trained weights are never changed and changed back: a loss is evaluated on ``theta + amount z`` written to
other storage, and the untouched tensors are put back by reference. So they return bit for bit in every
dtype, which adding and subtracting in place does not give, neither in bfloat16 nor in float32.

Four ways, for one loss: ``Swapped`` for any list of tensors, ``Streamed`` for all weights of a large model,
``Stacked`` for LoRA weights and ``Vectorised`` for all weights of a small model, many copies in one pass.

Source: SAGE, Preliminaries, equation 2.
"""

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from reprolib.errors import ReproError
from reprolib.learn.directions import Directions, Shift


class Perturbation(Protocol):
    """Evaluates losses at moved weights."""

    directions: Directions

    def losses(self, loss: Callable[[int], Tensor], shifts: Sequence[Shift]) -> Tensor:
        """Losses at each shift, [shifts, n]; ``loss(copies)`` runs the batch repeated, [copies, n]."""
        ...


class Swapped:
    """Every trained tensor is replaced by a moved copy while the loss runs: one copy of what is trained."""

    def __init__(self, directions: Directions):
        self.directions = directions

    def losses(self, loss: Callable[[int], Tensor], shifts: Sequence[Shift]) -> Tensor:
        """See ``Perturbation``; one pass a shift."""
        parameters = self.directions.parameters
        originals = [p.data for p in parameters]
        copies = [torch.empty_like(p) for p in parameters]
        values = []
        try:
            for shift in shifts:
                for index, (parameter, original) in enumerate(zip(parameters, originals, strict=True)):
                    parameter.data = original
                    parameter.data = self.directions.shifted(index, shift, copies[index])
                values.append(loss(1))
        finally:
            for parameter, original in zip(parameters, originals, strict=True):
                parameter.data = original
        return torch.cat(values)


class Streamed:
    """Each module's tensors are replaced while that module runs: one module's weights of extra memory.

    For full-parameter training of a large model. A tensor shared by several modules is moved in each.

    Raises:
        ReproError: a trained tensor belongs to no module of the model or, in a loss, is used by none.
    """

    def __init__(self, directions: Directions, model: nn.Module):
        self.directions, self.model = directions, model
        where = {id(p): index for index, p in enumerate(directions.parameters)}
        self._owned = {
            module: sorted({where[id(p)] for p in module.parameters(recurse=False) if id(p) in where})
            for module in model.modules()
        }
        self._owned = {module: indices for module, indices in self._owned.items() if indices}
        missing = set(where.values()) - {i for indices in self._owned.values() for i in indices}
        if missing:
            raise ReproError(f"trained tensor {min(missing)} belongs to no module of the model")

    def losses(self, loss: Callable[[int], Tensor], shifts: Sequence[Shift]) -> Tensor:
        """See ``Perturbation``; one pass a shift."""
        values = []
        for shift in shifts:
            with self._moving(shift) as seen:
                values.append(loss(1))
            unseen = set(range(len(self.directions.parameters))) - seen
            if unseen:
                raise ReproError(f"trained tensor {min(unseen)} was not moved: its module was never called")
        return torch.cat(values)

    @contextmanager
    def _moving(self, shift: Shift) -> Iterator[set[int]]:
        originals: dict[int, Tensor] = {}
        seen: set[int] = set()

        def move(module: nn.Module, _: Any) -> None:
            for index in self._owned[module]:
                if index in originals:
                    raise ReproError(
                        f"trained tensor {index} is used by a module inside another that uses it"
                    )
                parameter = self.directions.parameters[index]
                copy = self.directions.shifted(index, shift, torch.empty_like(parameter))
                originals[index], parameter.data = parameter.data, copy
                seen.add(index)

        def put_back(module: nn.Module, *_: Any) -> None:
            for index in self._owned[module]:
                self.directions.parameters[index].data = originals.pop(index)

        handles = [m.register_forward_pre_hook(move) for m in self._owned]
        handles += [m.register_forward_hook(put_back) for m in self._owned]
        try:
            yield seen
        finally:
            for handle in handles:
                handle.remove()
            for index, original in originals.items():  # a forward pass that failed half way
                self.directions.parameters[index].data = original


class Stacked:
    """Several moved copies of linear maps in one pass, each on its own copy of the batch: for LoRA.

    The batch is repeated and every trained map becomes one batched product, so the frozen part of the model
    sees one large batch. The rows of a map's input must be the records in their order, copy after copy.

    Args:
        copies: moved copies in a pass.

    Raises:
        ReproError: a trained tensor is not the weight of a linear map, or ``copies`` < 1; in a loss, a map
            whose rows cannot be divided among the copies, or that was not used.
    """

    def __init__(self, directions: Directions, model: nn.Module, *, copies: int = 16):
        if copies < 1:
            raise ReproError(f"copies = {copies}: expected at least 1")
        self.directions, self.copies = directions, copies
        maps: dict[int, nn.Linear] = {
            id(m.weight): m
            for m in model.modules()
            if isinstance(m, nn.Linear) and m._parameters.get("bias") is None
        }
        if not all(id(p) in maps for p in directions.parameters):
            raise ReproError("a trained tensor is not the weight of a linear map without bias: use Swapped")
        self._maps: list[nn.Linear] = [maps[id(p)] for p in directions.parameters]

    def losses(self, loss: Callable[[int], Tensor], shifts: Sequence[Shift]) -> Tensor:
        """See ``Perturbation``; ``copies`` shifts a pass."""
        blocks = [shifts[i : i + self.copies] for i in range(0, len(shifts), self.copies)]
        return torch.cat([self._block(loss, block) for block in blocks])

    def _block(self, loss: Callable[[int], Tensor], shifts: Sequence[Shift]) -> Tensor:
        used: set[int] = set()
        try:
            for index, module in enumerate(self._maps):
                weights = self.directions.stacked(index, shifts)
                vars(module)["forward"] = partial(_batched, weights, used, index)
            values = loss(len(shifts))
        finally:
            for module in self._maps:
                vars(module).pop("forward", None)
        if len(used) < len(self._maps):
            raise ReproError("a trained linear map was not used by the loss: its weights cannot be learned")
        return values


class Vectorised:
    """Several moved copies of all weights in one vectorised pass: for a model whose copies fit in memory.

    Args:
        copies: moved copies in a pass.

    Raises:
        ReproError: a trained tensor is not of the model, or ``copies`` < 1.
    """

    def __init__(self, directions: Directions, model: nn.Module, *, copies: int = 32):
        if copies < 1:
            raise ReproError(f"copies = {copies}: expected at least 1")
        names = {id(p): name for name, p in model.named_parameters()}
        if not all(id(p) in names for p in directions.parameters):
            raise ReproError("a trained tensor is not a parameter of the model: use Swapped")
        self.directions, self.copies = directions, copies
        self._names = [f"model.{names[id(p)]}" for p in directions.parameters]
        self._evaluation = _Evaluation(model)

    @torch.no_grad()
    def losses(self, loss: Callable[[int], Tensor], shifts: Sequence[Shift]) -> Tensor:
        """See ``Perturbation``; ``copies`` shifts a pass."""
        values = []
        for start in range(0, len(shifts), self.copies):
            block = shifts[start : start + self.copies]
            moved = {name: self.directions.stacked(i, block) for i, name in enumerate(self._names)}
            with warnings.catch_warnings():  # an operation without a batched form runs copy by copy
                warnings.filterwarnings("ignore", message="There is a performance drop")
                one = partial(torch.func.functional_call, self._evaluation, args=(partial(loss, 1),))
                values.append(torch.func.vmap(one)(moved).flatten(0, 1))
        return torch.cat(values)


class _Evaluation(nn.Module):
    """A loss of the model as a module of its own, whose tensors ``functional_call`` can replace."""

    def __init__(self, model: nn.Module):
        super().__init__()
        self.model = model

    def forward(self, loss: Callable[[], Tensor]) -> Tensor:
        return loss()


def _batched(weights: Tensor, used: set[int], index: int, x: Tensor) -> Tensor:
    """``x W^T`` with copy c of the weights, [copies, out, in], for the c-th part of x's rows."""
    if len(x) % len(weights):
        raise ReproError(f"{len(x)} rows cannot be divided among {len(weights)} copies of the batch")
    used.add(index)
    flat = x.reshape(len(weights), -1, x.shape[-1])
    return torch.bmm(flat, weights.transpose(1, 2)).view(*x.shape[:-1], -1)
