"""PrivDPO with weights, gradients and moments sharded over processes: FSDP2 through accelerate.

    torchrun --nproc-per-node 8 train.py                        # train.py, in each process:
        gradients = PairGradients(policy, Randomized(PrivDPO(1.0)), reference=reference)
        run = ShardedAligner(gradients, pairs, EntropySource.private(), seed=0)
        run.step()                                              # run.rounds times

Every process knows the public order and takes its share of each global batch. The loss is that of
``PairGradients``, unchanged, and the gradient of the whole batch never lies in one place. Coins are tossed
once a global batch, by one process: see ``OnePlace``.

Source: PrivDPO, Section 4.3 (compatible with sharded training) and Section 5.1 (FSDP).
"""

from collections.abc import Sequence
from typing import Any

import torch
from accelerate import (  # type: ignore[import-untyped]
    Accelerator,
    DistributedType,
    FullyShardedDataParallelPlugin,
)
from peft import PeftModel
from torch import Tensor, nn

from reprolib.errors import ReproError
from reprolib.learn import ranks
from reprolib.learn.dpo import BATCH_SIZE, LEARNING_RATE, WARMUP_STEPS, WEIGHT_DECAY, ShuffledEpochs
from reprolib.learn.preference_loss import PairMethod
from reprolib.learn.preference_pairs import Pair, blocks, check_pairs
from reprolib.learn.preference_records import PairGradients
from reprolib.learn.trainer import AdamStep
from reprolib.privacy.ledger import Ledger
from reprolib.privacy.mechanism import EntropySource


class OnePlace:
    """A method whose weights are drawn by the first process, for the pairs of all processes, and handed out.

    So the law is that of one process whatever their number: no coin can be tossed twice, and processes that
    were given one seed do not toss equal coins. Intensities and bits travel to the first process; what comes
    back is private.

    Args:
        inner: the method.
    """

    def __init__(self, inner: PairMethod):
        self.inner, self.needs_reference = inner, inner.needs_reference

    @property
    def visit_epsilon(self) -> float:
        """The inner method's."""
        return self.inner.visit_epsilon

    def check(self, pairs: Sequence[Pair]) -> None:
        """The inner method's check."""
        self.inner.check(pairs)

    def weights(self, psi: Tensor, preferred: Tensor, entropy: EntropySource, *, beta: float) -> Tensor:
        """The rows of the global batch's weights that belong to this process, [own pairs, 2].

        Of ``entropy`` only the first process's is read.
        """
        everyone = ranks.of_all((psi.cpu(), preferred.cpu()))
        drawn = None
        if ranks.rank() == 0:
            all_psi, all_bits = (torch.cat([own[k] for own in everyone]) for k in (0, 1))
            found = self.inner.weights(all_psi, all_bits, entropy, beta=beta)
            drawn = torch.split(found, [len(own[0]) for own in everyone])
        own_rows: Tensor = ranks.from_first(drawn)[ranks.rank()]
        return own_rows.to(psi.device)


class PairLoss(nn.Module):
    """The loss of ``PairGradients`` as the forward pass of one module, whose hooks gather the shards.

    ``PairGradients`` calls the model's body and its head apart; as parts of this root both are gathered.
    """

    def __init__(self, gradients: PairGradients):
        super().__init__()
        self.model = gradients.policy.model
        self._loss = gradients.loss

    def forward(self, pairs: Sequence[Pair], entropy: EntropySource) -> Tensor:
        """See ``PairGradients.loss``."""
        return self._loss(pairs, entropy)


def accelerator(gradients: PairGradients) -> Accelerator:
    """Set accelerate up for FSDP2, a unit a transformer layer.

    Raises:
        ReproError: not started by torchrun or ``accelerate launch`` with at least two processes.
    """
    # asked first: an Accelerator leaves its settings in the process, for whatever else uses accelerate there
    if ranks.count() < 2:
        raise ReproError("one process: start several with `torchrun --nproc-per-node`, or use dpo.aligner")
    model = gradients.policy.model
    causal = model.get_base_model() if isinstance(model, PeftModel) else model
    plugin = FullyShardedDataParallelPlugin(
        fsdp_version=2, auto_wrap_policy="transformer_based_wrap", reshard_after_forward=True,
        transformer_cls_names_to_wrap=list(causal._no_split_modules),
    )  # fmt: skip
    found = Accelerator(cpu=not torch.cuda.is_available(), fsdp_plugin=plugin)
    if found.distributed_type is DistributedType.MULTI_CPU:
        # accelerate offers FSDP on accelerators only, though torch shards on CPUs with gloo too
        found.state.distributed_type, found.state.fsdp_plugin = DistributedType.FSDP, plugin
    return found


class ShardedAligner:
    """``dpo.aligner`` over the processes of an FSDP2 run: same order, coins, loss, AdamW and warm-up.

    Args:
        gradients: how; the policy's weights are sharded in place.
        pairs: all of them, in every process.
        entropy: coins of the randomiser; that of the first process is used.
        seed, epochs, batch_size, learning_rate, warmup_steps, ledger: as for ``dpo.aligner``; the batch is
            the global one, and the first process writes the ledger.

    Raises:
        ReproError: fewer than two processes, batches smaller than their number, a record map with a row a
            pair (it clips, and sharded gradients cannot be clipped pair by pair), or as ``dpo.aligner``.
    """

    def __init__(self, gradients: PairGradients, pairs: Sequence[Pair], entropy: EntropySource, *, seed: int,
                 epochs: int = 1, batch_size: int = BATCH_SIZE, learning_rate: float = LEARNING_RATE,
                 warmup_steps: int = WARMUP_STEPS, ledger: Ledger | None = None):  # fmt: skip
        if gradients.per_record:
            raise ReproError("a row a pair cannot be sharded: expected PairGradients without per_record")
        check_pairs(gradients.policy, pairs)
        gradients.method.check(pairs)
        self.accelerator = accelerator(gradients)
        self.sampler = ShuffledEpochs(len(pairs), batch_size=batch_size, epochs=epochs, seed=seed)
        last = len(pairs) % batch_size or batch_size
        if last < self.accelerator.num_processes:
            raise ReproError(
                f"a batch has {last} pairs for {self.accelerator.num_processes} processes: expected at least "
                "one each; change batch_size"
            )
        update = AdamStep(gradients.parameters, learning_rate=learning_rate, weight_decay=WEIGHT_DECAY,
                          warmup_steps=warmup_steps)  # fmt: skip
        gradients.method = OnePlace(gradients.method)
        self.loss, _ = self.accelerator.prepare(PairLoss(gradients), update.optimizer)
        self.update, self.pairs, self.entropy, self.ledger = update, pairs, entropy, ledger
        self.batch_size, self.rounds_done = batch_size, 0

    @property
    def rounds(self) -> int:
        """Batches of all epochs."""
        return self.sampler.rounds

    @property
    def parameters(self) -> list[nn.Parameter]:
        """The trained weights; each holds this process's shard."""
        return [p for p in self.loss.parameters() if p.requires_grad]

    def share(self, slots: Sequence[int]) -> list[Pair]:
        """The pairs of a batch that this process takes: a stretch of the order in which one process reads."""
        drawn = [self.pairs[i] for i in slots]
        (order,) = blocks(drawn, 2**62)
        rank, count = self.accelerator.process_index, self.accelerator.num_processes
        ends = [round(len(order) * k / count) for k in (rank, rank + 1)]
        return [drawn[i] for i in order[slice(*ends)]]

    def step(self) -> None:
        """One round; an update that is not finite moves nothing."""
        own = self.share([int(i) for i in self.sampler.draw()])
        # gradients of the processes are averaged; the batch is summed and divided by its public size
        loss = self.loss(own, self.entropy) * self.accelerator.num_processes / self.batch_size
        if self.ledger is not None and self.accelerator.is_main_process:
            self.ledger.begin_round(self.rounds_done)
        self.accelerator.backward(loss)
        norm: Any = nn.utils.get_total_norm([p.grad for p in self.parameters if p.grad is not None])
        if bool(norm.full_tensor().isfinite()):
            self.update.optimizer.step()
        self.update.optimizer.zero_grad()
        self.update.schedule.step()
        self.rounds_done += 1

    def weights(self) -> list[Tensor]:
        """The trained weights put together, in every process; for small models, and for checks."""
        return [p.detach().full_tensor() for p in self.parameters]  # type: ignore[attr-defined]
