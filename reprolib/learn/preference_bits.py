"""Preference bits that are randomised once and kept, and what a bit costs over several epochs.

    kept = RandomizedBits.draw(pairs, epsilon=1.0, entropy=EntropySource.private())
    noisy = kept.apply(pairs)                 # train on these with Debiased(1.0), or with DPO()
    kept.write(path)                          # the randomised bits are epsilon-private: the file may be seen

Whatever is trained on the noisy pairs, in any order, for any number of epochs and in any precision, is
post-processing of one release of epsilon (Proposition 3.2). Fresh coins at each visit compose instead
(Proposition 3.3). Only randomised response and PrivDPO can be kept like that: the outputs of Duchi and
Piecewise depend on the intensity, which moves while the model is trained.

Source: PrivDPO, Propositions 3.2 and 3.3; Section 4.4, remark on several epochs. The kept bit is ours.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from reprolib.errors import ReproError
from reprolib.learn.preference_loss import PairMethod, same_epsilon
from reprolib.learn.preference_pairs import Pair, data_digest
from reprolib.paths import write_atomically
from reprolib.privacy.mechanism import EntropySource
from reprolib.privacy.plan import PrivacyCard
from reprolib.privacy.preference import flip_probability
from reprolib.privacy.visits import LocalPlan


@dataclass(frozen=True, kw_only=True)
class RandomizedBits:
    """One randomised bit for each pair of a data set.

    Args:
        epsilon: the budget that the draw spent.
        data: digest of the data set's public part.
        bits: whether ``first`` is preferred, after randomised response.
        replayable: whether the coins came from a research source: then nothing is guaranteed.
    """

    epsilon: float
    data: str
    bits: tuple[bool, ...]
    replayable: bool

    @classmethod
    def draw(cls, pairs: Sequence[Pair], *, epsilon: float, entropy: EntropySource) -> "RandomizedBits":
        """Randomised response on every annotation: one release of epsilon. Drawing again composes.

        Raises:
            ReproError: no pair, epsilon out of range, or bits that were randomised before.
        """
        if not pairs:
            raise ReproError("no pairs to randomise: expected at least one")
        if same_epsilon(pairs) is not None:
            raise ReproError("the bits are randomised already: expected annotations")
        flips = entropy.coins(len(pairs)) < flip_probability(epsilon)
        drawn = tuple(p.first_preferred ^ bool(flip) for p, flip in zip(pairs, flips, strict=True))
        return cls(epsilon=epsilon, data=data_digest(pairs), bits=drawn, replayable=entropy.replayable)

    def apply(self, pairs: Sequence[Pair]) -> tuple[Pair, ...]:
        """The pairs with the kept bits in place of their annotations, which are not read.

        Raises:
            ReproError: another data set than the one drawn for.
        """
        if data_digest(pairs) != self.data:
            raise ReproError(
                "these randomised bits were drawn for another data set, or another order of this one: draw "
                "them for these pairs, which spends epsilon on each of them"
            )
        return tuple(
            replace(p, first_preferred=bit, randomized=self.epsilon)
            for p, bit in zip(pairs, self.bits, strict=True)
        )

    def write(self, path: Path) -> None:
        """Write the bits with what they belong to; the file is replaced as a whole."""
        content = {
            "epsilon": self.epsilon, "data": self.data, "replayable": self.replayable,
            "bits": "".join(str(int(bit)) for bit in self.bits),
        }  # fmt: skip
        write_atomically(path, json.dumps(content) + "\n")

    @classmethod
    def read(cls, path: Path, pairs: Sequence[Pair], *, epsilon: float) -> "RandomizedBits":
        """What ``write`` left, for these pairs and this epsilon.

        Raises:
            ReproError: no readable file, or bits drawn at another epsilon or for another data set.
        """
        found = _read(path)
        if found.epsilon != epsilon:
            raise ReproError(
                f"{path}: randomised at epsilon {found.epsilon:g}, expected {epsilon:g}: use another file"
            )
        if found.data != data_digest(pairs) or len(found.bits) != len(pairs):
            raise ReproError(f"{path}: bits randomised for another data set: use another file")
        return found


def _read(path: Path) -> RandomizedBits:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        bits, replayable = content["bits"], content["replayable"]
        if set(bits) > {"0", "1"} or not isinstance(replayable, bool):
            raise ValueError("bits or replayable")
        flip_probability(content["epsilon"])
        return RandomizedBits(
            epsilon=content["epsilon"], data=content["data"], bits=tuple(b == "1" for b in bits),
            replayable=replayable,
        )  # fmt: skip
    except (OSError, ValueError, KeyError, TypeError, ReproError) as error:
        raise ReproError(
            f"{path}: line 1: no readable randomised bits ({error!r}): restore the file, since a new draw "
            "spends epsilon again"
        ) from error


def randomize_rows(rows: Any, *, epsilon: float, entropy: EntropySource) -> Any:
    """A data set with the columns ``chosen`` and ``rejected``, swapped at random, once.

    What any trainer makes of it afterwards is epsilon-private for the annotation: use a debiased loss with
    the flip probability ``flip_probability(epsilon)`` as its label smoothing.

    Args:
        rows: a ``datasets.Dataset``.
        epsilon: the budget, spent by this call.
        entropy: where coins come from.

    Raises:
        ReproError: a missing column, or epsilon out of range.

    Source: PrivDPO, Appendix A (randomised preference flipping).
    """
    missing = {"chosen", "rejected"} - set(rows.column_names)
    if missing:
        raise ReproError(f"no column {sorted(missing)[0]!r}: expected the columns chosen and rejected")
    flips = entropy.coins(len(rows)) < flip_probability(epsilon)
    swap: Callable[[Mapping[str, Any], int], dict[str, Any]] = lambda row, i: (  # noqa: E731
        {"chosen": row["rejected"], "rejected": row["chosen"]} if flips[i] else {}
    )
    # without a file: the library would keep it under a name that depends on the coins and the annotations
    return rows.map(swap, with_indices=True, keep_in_memory=True, load_from_cache_file=False)


def local_plan(method: PairMethod, pairs: Sequence[Pair], *, batch_size: int, epochs: int) -> LocalPlan:
    """What a run of a preference-private method spends on each bit; infinite on annotations used as they are.

    Args:
        method: it, with the pairs, says what a visit is.
        pairs: annotations, or bits that were randomised once.
        batch_size, epochs: of the run.

    Raises:
        ReproError: pairs that the method refuses, or no whole epoch.

    Source: PrivDPO, Propositions 3.2 (bits randomised once: post-processing) and 3.3 (fresh coins: a sum).
    """
    method.check(pairs)
    once = same_epsilon(pairs)
    return LocalPlan(
        population=len(pairs), batch_size=batch_size, epochs=epochs, once_epsilon=once or 0.0,
        visit_epsilon=method.visit_epsilon if once is None else 0.0,
    )  # fmt: skip


def spent_epsilon(method: PairMethod, pairs: Sequence[Pair], *, epochs: int) -> float:
    """Epsilon of each bit after a number of epochs, see ``local_plan``."""
    return local_plan(method, pairs, batch_size=len(pairs), epochs=epochs).epsilon()


def privacy_card(method: PairMethod, pairs: Sequence[Pair], *, epochs: int, replayable: bool) -> PrivacyCard:
    """The privacy card of a run of a preference-private method, see ``local_plan``.

    Args:
        replayable: whether any coin, of the run or of the bits, came from a research source.
    """
    return local_plan(method, pairs, batch_size=len(pairs), epochs=epochs).card(replayable=replayable)
