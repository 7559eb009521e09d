"""Checks that only the DP-GRPO paper needs."""

from decimal import Decimal, InvalidOperation
from functools import cache
from typing import Any

from reprolib.errors import ReproError
from reprolib.evidence.checks import Outcome, check
from reprolib.evidence.checks.common import formula
from reprolib.evidence.published import Cell, Published
from reprolib.privacy import accounting

OPACUS_ORDERS = [1 + x / 10 for x in range(1, 100)] + list(range(12, 64))  # Appendix A-F
PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")  # Appendix C-A
RANK = 4


def _printed(name: str, text: str) -> Cell:
    try:
        value = Decimal(text)
    except (InvalidOperation, TypeError):
        raise ReproError(f"printed number {name!r}: {text!r} is not a quoted decimal number") from None
    blank = dict.fromkeys(("table", "section", "row", "column", "quantity", "unit", "text"), "")
    return Cell(id=f"dp_grpo.text.{name}", paper="dp_grpo", value=value, low=None, high=None, **blank)


@check
def text_formula(published: Published, *, expression: str, printed: dict[str, str],
                 **variables: Any) -> Outcome:  # fmt: skip
    """``formula`` over numbers that only the text prints, with their rounding carried along.

    Args:
        published: the papers' table cells.
        expression: as in ``formula``.
        printed: numbers by variable name, quoted as the paper prints them.
        variables: further variables of ``formula``; references to table cells are allowed.

    Raises:
        ReproError: a printed number that is not a decimal.

    Source: DP-GRPO, Sections VIII-A to VIII-F (intervals that are in no table).
    """
    cells = [_printed(name, text) for name, text in printed.items()]
    known = Published([*published, *cells], published.titles)
    references = {name: f"dp_grpo.text.{name}" for name in printed}
    return formula(known, expression=expression, **references, **variables)


@cache
def _architecture() -> dict[str, int]:
    """Sizes of Qwen2.5-1.5B and of its rank-4 adapters, counted on modules without storage."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import Qwen2Config, Qwen2ForCausalLM

    config = Qwen2Config(
        hidden_size=1536, num_hidden_layers=28, num_attention_heads=12, num_key_value_heads=2,
        intermediate_size=8960, vocab_size=151936, tie_word_embeddings=True,
    )  # fmt: skip
    with torch.device("meta"):
        model = Qwen2ForCausalLM(config)
        total = sum(p.numel() for p in model.parameters())
        adapted = get_peft_model(model, LoraConfig(r=RANK, target_modules=list(PROJECTIONS)))
    trainable = [p.numel() for p in adapted.parameters() if p.requires_grad]
    return {"parameters": total, "coordinates": sum(trainable), "tensors": len(trainable)}


@check
def architecture_size(published: Published, *, quantity: str) -> Outcome:
    """Size of the public Qwen2.5-1.5B architecture with rank-4 LoRA on its seven projections.

    Args:
        published: not used.
        quantity: ``parameters`` of the model, in billions, or trainable ``coordinates`` or ``tensors``.

    Raises:
        ReproError: another quantity.

    Source: DP-GRPO, Appendix C-A; the architecture is that of the model's public configuration.
    """
    sizes = _architecture()
    if quantity not in sizes:
        raise ReproError(f"quantity = {quantity!r}: expected one of {', '.join(sizes)}")
    count = sizes[quantity]
    value = count / 1e9 if quantity == "parameters" else float(count)
    return Outcome(value, detail=f"{count:,} {quantity}, counted on a model without weights")


@check
def opacus_grid_gap(published: Published, *, sigma: str) -> Outcome:
    """Largest change of the RDP budgets of Table VI when minimised over Opacus's smaller order grid.

    Args:
        published: the papers' table cells.
        sigma: pattern of the noise multipliers; n, m and T come from the same rows.

    Source: DP-GRPO, Appendix A-F.
    """
    gaps = {}
    for cell in published.match(sigma):
        row = cell.rpartition(".")[0]
        n, m, rounds = (float(published.number(f"{row}.{name}")) for name in ("n", "m", "rounds"))
        setting: dict[str, Any] = {
            "sampling_rate": m / n, "rounds": int(rounds), "delta": 1 / (10 * n),
            "noise_multiplier": float(published.number(cell)),
        }  # fmt: skip
        ours, smaller = accounting.rdp(**setting), accounting.rdp(**setting, orders=OPACUS_ORDERS)
        gaps[row] = abs(smaller.epsilon - ours.epsilon)
    worst = max(gaps, key=lambda row: gaps[row])
    return Outcome(gaps[worst], detail=f"largest of {len(gaps)} gaps, at {worst}: {gaps[worst]:.2g}")
