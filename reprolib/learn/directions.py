"""Public random directions, regenerated from a seed, and updates along them.

The directions are public: whoever knows the seed knows them. Privacy noise comes from an ``EntropySource``.
Source: SAGE, Preliminaries, and Algorithm 1, line 21.
"""

import math
from collections.abc import Iterator, Sequence
from typing import Literal, get_args

import numpy as np
import torch
from torch import Tensor

from reprolib.errors import ReproError

Distribution = Literal["gaussian", "rademacher", "sphere"]
Shift = tuple[int, float]  # the index of a direction, and how far along it
CHUNK = 2**16  # coordinates drawn at a time: a quarter of a MiB, which stays in the cache
MIXER = 0x9E3779B97F4A7C15  # odd, so multiplying by it is one to one modulo 2^32 and 2^64
MOVED = 0.5  # smallest share of coordinates that a perturbation has to move


class Directions:
    """The K directions of each round over a list of tensors; nothing but the seed is kept.

    Tensor i of direction k in round t has a generator of its own, so any part can be drawn again alone. The
    seeds of a run differ from each other as long as it has fewer than 2^32 of them. Draws are float32,
    whatever the weights' dtype.

    Args:
        parameters: what is trained; contiguous tensors.
        num_directions: K.
        seed: public.
        distribution: of a direction: standard normal, signs, or uniform on the sphere of radius sqrt(d).
        keep: hold the round's directions in memory (K d numbers) instead of drawing them three times.

    Attributes:
        round: the round whose directions are drawn; counted up by whoever applies the update.

    Raises:
        ReproError: no tensor, one that is not contiguous or not floating, K < 1, a bad seed or distribution.
    """

    def __init__(self, parameters: Sequence[Tensor], *, num_directions: int, seed: int,
                 distribution: Distribution = "gaussian", keep: bool = False):  # fmt: skip
        _check(parameters, num_directions, seed, distribution)
        self.parameters, self.num_directions = list(parameters), num_directions
        self.distribution, self.keep, self.round = distribution, keep, 0
        self.dimension = sum(p.numel() for p in parameters)
        self._start = int(np.random.SeedSequence(seed).generate_state(1, np.uint64)[0])
        self._kept: tuple[int, list[Tensor]] = (-1, [])
        self._radii: tuple[int, list[float]] = (-1, [])

    def direction(self, k: int) -> Tensor:
        """Direction k of this round as one vector, float32, [d]."""
        return torch.cat([piece.clone() for i in range(len(self.parameters)) for piece in self._pieces(k, i)])

    def shifted(self, index: int, shift: Shift, out: Tensor) -> Tensor:
        """Tensor ``index`` moved along a direction, rounded once to the dtype of ``out``, and put there."""
        k, amount = shift
        theta, moved = (torch.split(t.data.view(-1), CHUNK) for t in (self.parameters[index], out))
        for old, z, new in zip(theta, self._pieces(k, index), moved, strict=True):
            torch.add(old, z, alpha=amount, out=new)
        return out

    def stacked(self, index: int, shifts: Sequence[Shift]) -> Tensor:
        """Tensor ``index`` moved by each shift, [shifts, shape of the tensor]."""
        theta = self.parameters[index].data
        moved = theta.new_empty(len(shifts), *theta.shape)
        if self.keep:
            ks, amounts = zip(*shifts, strict=True)
            wide = torch.promote_types(theta.dtype, torch.float32)
            steps = theta.new_tensor(amounts, dtype=wide)[:, None] * self._all(index)[list(ks)].to(wide)
            return torch.add(theta.view(-1), steps, out=moved.view(len(shifts), -1)).view_as(moved)
        for shift, out in zip(shifts, moved, strict=True):
            self.shifted(index, shift, out)
        return moved

    def subtract(self, coefficients: Tensor, *, scale: float) -> None:
        """Take scale sum_k coefficients_k z_k from the weights: one sweep, summed in float32, rounded once.

        Args:
            coefficients: shape [K].

        Source: SAGE, Algorithm 1, line 21.
        """
        for index, parameter in enumerate(self.parameters):
            theta = parameter.data.view(-1)
            wide = torch.promote_types(theta.dtype, torch.float32)
            if self.keep:
                theta.sub_((scale * coefficients).to(theta.device, wide) @ self._all(index).to(wide))
                continue
            drawn = [self._pieces(k, index) for k in range(self.num_directions)]
            for piece in torch.split(theta, CHUNK):
                total = torch.zeros_like(piece, dtype=wide)
                for weight, pieces in zip(coefficients.tolist(), drawn, strict=True):
                    total.add_(next(pieces), alpha=scale * weight)
                piece.sub_(total)

    def check_scale(self, scale: float) -> None:
        """Refuse a perturbation scale mu that the weights' dtype cannot show; reads public weights only.

        Raises:
            ReproError: theta + mu z and theta - mu z are the same number in more than half the coordinates.
        """
        moved = 0
        for index, parameter in enumerate(self.parameters):
            theta = torch.split(parameter.data.view(-1), CHUNK)
            for old, z in zip(theta, self._pieces(0, index), strict=True):
                plus, minus = (torch.add(old, z, alpha=sign * scale).to(old.dtype) for sign in (1, -1))
                moved += int((plus != minus).sum())
        if moved < MOVED * self.dimension:
            raise ReproError(
                f"mu = {scale:g} moves {moved} of {self.dimension} weights in {self.parameters[0].dtype}: "
                "the two forward passes coincide; raise mu or hold the weights in float32"
            )

    def _pieces(self, k: int, index: int) -> Iterator[Tensor]:
        """Direction k over tensor ``index``, chunk by chunk; a chunk is valid until the next is drawn."""
        if self.keep:
            yield from torch.split(self._all(index)[k], CHUNK)
        else:
            yield from self._draw(k, index)

    def _all(self, index: int) -> Tensor:
        """All directions of the round over tensor ``index``, held, [K, numbers]."""
        if self._kept[0] != self.round:
            held = [torch.empty(self.num_directions, p.numel(), device=p.device) for p in self.parameters]
            for i, rows in enumerate(held):
                for k, row in enumerate(rows):
                    for _ in self._draw(k, i, into=row):
                        pass
            self._kept = (self.round, held)
        return self._kept[1][index]

    def _draw(self, k: int, index: int, into: Tensor | None = None) -> Iterator[Tensor]:
        """Direction k over tensor ``index``, chunk by chunk: in one buffer, or in a row that holds it all."""
        radius = self._radius(k) if self.distribution == "sphere" else 1.0
        for z in self._normal(k, index, into):
            if self.distribution == "rademacher":
                z.copy_(z >= 0).mul_(2).sub_(1)
            yield z.mul_(radius) if radius != 1.0 else z

    def _normal(self, k: int, index: int, into: Tensor | None = None) -> Iterator[Tensor]:
        tensor = self.parameters[index]
        counter = (self.round * self.num_directions + k) * len(self.parameters) + index
        generator = torch.Generator(device=tensor.device)
        generator.manual_seed((self._start + counter) * MIXER % 2**64)
        count = tensor.numel()
        buffer = torch.empty(min(CHUNK, count), device=tensor.device) if into is None else into
        for start in range(0, count, CHUNK):
            place = 0 if into is None else start
            yield buffer[place : place + min(CHUNK, count - start)].normal_(generator=generator)

    def _radius(self, k: int) -> float:
        """What takes a normal vector to the sphere of radius sqrt(d)."""
        if self._radii[0] != self.round:
            tensors = range(len(self.parameters))
            squares = [
                sum(float(z.double().square().sum()) for i in tensors for z in self._normal(j, i))
                for j in range(self.num_directions)
            ]
            self._radii = (self.round, [math.sqrt(self.dimension / s) for s in squares])
        return self._radii[1][k]


def _check(parameters: Sequence[Tensor], num_directions: int, seed: int, distribution: str) -> None:
    if not parameters or not all(p.is_floating_point() and p.is_contiguous() for p in parameters):
        raise ReproError("directions need at least one tensor, all floating and contiguous in memory")
    if isinstance(num_directions, bool) or not isinstance(num_directions, int) or num_directions < 1:
        raise ReproError(f"num_directions = {num_directions!r}: expected a whole number, at least 1")
    if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
        raise ReproError(f"seed = {seed!r}: expected a whole number, at least 0")
    if distribution not in get_args(Distribution):
        raise ReproError(
            f"distribution {distribution!r}: expected one of {', '.join(get_args(Distribution))}"
        )
