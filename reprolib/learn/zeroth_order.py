"""Training without backpropagation: per-record finite differences along public random directions.

    parameters = list(adapter_parameters(policy.model).values())
    directions = for_method("dp-aggzo", parameters, num_directions=64, seed=0)
    record_map = FiniteDifferences(loss, Swapped(directions), scale=1e-3)
    update = AlongDirections(directions, learning_rate=1e-2)
    released = ...                            # clip, sum and noise: GaussianSum with dimension K
    update.apply(released)                    # theta <- theta - eta sum_k released_k z_k

What leaves a record is its K-vector, which ``GaussianSum`` clips as a whole. The methods differ in K, in the
law of a direction and in the plan: SPSA and MeZO run with ``noise_multiplier=0`` and ``clip_norm=math.inf``.
``LossGradient`` is the first-order counterpart: DP-AdamW is the trainer with that record map.

Source: SAGE, Preliminaries, equations 2 to 4, and Algorithm 1, lines 5 and 21.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Generic, Protocol, TypeVar

import torch
from torch import Tensor

from reprolib.errors import ReproError
from reprolib.learn.directions import Directions, Distribution
from reprolib.learn.perturbation import Perturbation
from reprolib.lm.logprobs import length_blocks
from reprolib.privacy.mechanism import EntropySource

R = TypeVar("R")
Loss = Callable[[Sequence[R]], Tensor]

# law of a direction, and whether the method has one direction a round
METHODS: dict[str, tuple[Distribution, bool]] = {
    "spsa": ("rademacher", True),  # Spall (1992)
    "mezo": ("gaussian", False),  # Malladi et al. (2023), n-SPSA
    "dp-zo": ("gaussian", True),  # Tang et al. (2025)
    "dpzero": ("sphere", True),  # Zhang et al. (2024a)
    "dp-aggzo": ("gaussian", False),  # Bao et al. (2025); SAGE adds a controller to it
}


def for_method(method: str, parameters: Sequence[Tensor], *, seed: int, num_directions: int = 1,
               keep: bool = False) -> Directions:  # fmt: skip
    """The directions of a method by name, one of ``METHODS``.

    Raises:
        ReproError: an unknown method, or more than one direction for a method that has one.
    """
    if method not in METHODS:
        raise ReproError(f"method {method!r}: expected one of {', '.join(METHODS)}")
    distribution, single = METHODS[method]
    if single and num_directions != 1:
        raise ReproError(f"{method} has one direction a round, not {num_directions}: use dp-aggzo or mezo")
    return Directions(
        parameters, num_directions=num_directions, seed=seed, distribution=distribution, keep=keep
    )


class FiniteDifferences(Generic[R]):
    """Record map: two-sided finite differences of a record's loss along the round's K directions, over K.

    The vector of a record x has the entries (l(theta + mu z_k; x) - l(theta - mu z_k; x)) / (2 mu K). A loss
    that is not finite makes that record's row not finite, which the clip turns to zero; no other row
    changes. Whether the losses of private records coincide is not looked at, as stopping a run on it would
    tell: call ``check`` with public records before a run.

    Args:
        loss: a batch of n records -> their losses, [n]; row i may depend on record i only.
        perturbation: how the model is seen at moved weights, and along which directions.
        scale: mu.
        batch_size: most records in a forward pass, times the copies of a ``Stacked`` perturbation.
        length: positions of a record. If given, the records of a pass are of similar length, so that little
            of it is padding: for a model whose pass costs more than starting it.

    Raises:
        ReproError: mu not above 0, batch_size < 1; in use, a loss of another shape, or a mu that leaves the
            (public) weights where they are.

    Source: SAGE, equations 2 and 3.
    """

    def __init__(self, loss: Loss[R], perturbation: Perturbation, *, scale: float = 1e-3,
                 batch_size: int = 256, length: Callable[[R], int] | None = None):  # fmt: skip
        if not 0 < scale < float("inf"):
            raise ReproError(f"mu = {scale!r}: expected a finite number above 0")
        if batch_size < 1:
            raise ReproError(f"batch_size = {batch_size}: expected at least 1")
        self.loss, self.perturbation, self.scale, self.batch_size = loss, perturbation, scale, batch_size
        self.length = length
        self.directions = perturbation.directions
        self.dimension = self.directions.num_directions
        self._checked = False

    def vectors(self, records: Sequence[R], entropy: EntropySource | None = None) -> Iterator[Tensor]:
        """The records' K-vectors, binary64, [records, K], in one block; ``entropy`` is not used."""
        if not self._checked:
            self.directions.check_scale(self.scale)
            self._checked = True
        if records:
            yield self.differences(records) / self.dimension

    @torch.no_grad()
    def differences(self, records: Sequence[R]) -> Tensor:
        """The finite differences themselves, without the 1/K, binary64, [records, K]."""
        shifts = [(k, sign * self.scale) for k in range(self.dimension) for sign in (1, -1)]
        blocks = list(self._blocks(records))
        place = torch.tensor([i for block in blocks for i in block]).argsort()

        def losses(copies: int) -> Tensor:
            rows = [_checked_losses(self.loss, [records[i] for i in block] * copies) for block in blocks]
            return torch.cat([row.double().view(copies, -1) for row in rows], dim=1)

        values = self.perturbation.losses(losses, shifts)[:, place]
        return (values[0::2] - values[1::2]).T / (2 * self.scale)

    def _blocks(self, records: Sequence[R]) -> Iterator[Sequence[int]]:
        """The positions of a pass's records."""
        if self.length is None:
            every = range(len(records))
            yield from (every[i : i + self.batch_size] for i in range(0, len(records), self.batch_size))
            return
        lengths = [self.length(record) for record in records]
        yield from length_blocks(lengths, self.batch_size * max(lengths))

    def check(self, records: Sequence[R]) -> None:
        """Refuse a mu at which the two forward passes coincide. Only for public records.

        Raises:
            ReproError: every record has the same loss on both sides of every direction.
        """
        self.directions.check_scale(self.scale)
        if not bool(self.differences(records).any()):
            dtype = self.directions.parameters[0].dtype
            raise ReproError(
                f"mu = {self.scale:g}: the two forward passes coincide in {dtype} for every record and "
                "direction; raise mu or compute the loss in float32"
            )


class LossGradient(Generic[R]):
    """Record map: the gradient of a record's loss. With the AdamW trainer it is DP-AdamW.

    A block is one forward pass and one vectorised backward pass. If any of its gradients is not finite, the
    block is done again a record at a time, as a value that is not finite would spread to the other rows.

    Args:
        loss: a batch of n records -> their losses, [n]; row i may depend on record i only.
        parameters: what is trained.
        batch_size: records of a block; the block's gradients are held in memory.

    Raises:
        ReproError: batch_size < 1; in use, a loss of another shape.
    """

    def __init__(self, loss: Loss[R], parameters: Sequence[Tensor], *, batch_size: int = 16):
        if batch_size < 1:
            raise ReproError(f"batch_size = {batch_size}: expected at least 1")
        self.loss, self.parameters, self.batch_size = loss, list(parameters), batch_size
        self.dimension = sum(p.numel() for p in self.parameters)

    def vectors(self, records: Sequence[R], entropy: EntropySource | None = None) -> Iterator[Tensor]:
        """The records' gradients in blocks, [records, dimension]; ``entropy`` is not used."""
        for start in range(0, len(records), self.batch_size):
            block = records[start : start + self.batch_size]
            rows = self._rows(block)
            if not bool(rows.isfinite().all()):
                rows = torch.cat([self._rows([record]) for record in block])
            yield rows

    def _rows(self, block: Sequence[R]) -> Tensor:
        losses = _checked_losses(self.loss, block)
        each = torch.eye(len(block), dtype=losses.dtype, device=losses.device)
        gradients = torch.autograd.grad(losses, self.parameters, each, is_grads_batched=True)
        return torch.cat([g.flatten(1) for g in gradients], dim=1)


def _checked_losses(loss: Loss[R], batch: Sequence[R]) -> Tensor:
    losses = loss(batch)
    if losses.shape != (len(batch),):
        raise ReproError(
            f"losses of shape {tuple(losses.shape)}: expected one for each of {len(batch)} records"
        )
    return losses


class Controller(Protocol):
    """A rule that scales a released vector; it sees released vectors only, so it is post-processing."""

    def update(self, released: Tensor) -> float:
        """The multiplier of this release."""
        ...

    def state(self) -> dict[str, Any]:
        """For a checkpoint."""
        ...

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from ``state()``."""
        ...


class AlongDirections:
    """How a released K-vector changes the weights: theta <- theta - eta m_t sum_k s_k z_k, then a new round.

    Args:
        learning_rate: eta.
        controller: gives m_t from the released vector; None for m_t = 1.

    Attributes:
        multiplier: m_t of the last round.

    Source: SAGE, Algorithm 1, lines 20 and 21.
    """

    def __init__(self, directions: Directions, *, learning_rate: float, controller: Controller | None = None):
        self.directions, self.learning_rate, self.controller = directions, learning_rate, controller
        self.multiplier = 1.0

    def apply(self, update: Tensor) -> None:
        """Move the weights; an update that is not finite moves nothing, and its round counts.

        Args:
            update: the released vector, [K].

        Raises:
            ReproError: another shape.
        """
        if update.shape != (self.directions.num_directions,):
            raise ReproError(
                f"an update of shape {tuple(update.shape)}: expected [{self.directions.num_directions}]"
            )
        if bool(update.isfinite().all()):
            self.multiplier = self.controller.update(update) if self.controller else 1.0
            self.directions.subtract(update, scale=self.learning_rate * self.multiplier)
        self.directions.round += 1

    def state(self) -> dict[str, Any]:
        """Round and controller, for a checkpoint; the weights are kept by the trainer."""
        return {
            "round": self.directions.round,
            "controller": self.controller.state() if self.controller else None,
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from ``state()``.

        Raises:
            ReproError: the state has a controller and this run has none, or the other way round.
        """
        if (state["controller"] is None) != (self.controller is None):
            raise ReproError("the checkpoint and this run differ in whether a controller scales the update")
        if self.controller:
            self.controller.restore(state["controller"])
        self.directions.round = state["round"]
