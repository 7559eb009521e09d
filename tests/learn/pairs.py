"""Random pairs over the tiny model's vocabulary."""

import torch

from reprolib.learn.preference_pairs import Pair


def random_pairs(count=6, *, seed=0, randomized=None) -> list[Pair]:
    """Prompts of 2 to 6 tokens, responses of 1 to 6, fair bits."""
    generator = torch.Generator().manual_seed(seed)

    def tokens(low, high):
        length = int(torch.randint(low, high, (1,), generator=generator))
        return tuple(torch.randint(2, 20, (length,), generator=generator).tolist())

    pairs = []
    while len(pairs) < count:
        prompt, responses = tokens(2, 7), (tokens(1, 7), tokens(1, 7))
        preferred = int(torch.randint(2, (1,), generator=generator))
        if responses[0] != responses[1]:
            pairs.append(
                Pair.ordered(
                    id=str(len(pairs)), prompt=prompt, responses=responses, preferred=preferred,
                    randomized=randomized,
                )
            )  # fmt: skip
    return pairs
