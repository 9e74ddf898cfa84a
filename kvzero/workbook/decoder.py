"""A toy decoder that always takes the likeliest token: enough to ask what changes its text, and what does not."""

from __future__ import annotations

import torch

from .pool import WIDTH

VOCABULARY = 1_000


def decode(cache: torch.Tensor, num_steps: int, *, splits: int, seed: int = 0) -> torch.Tensor:
    """Decode at temperature 0 over a given cache, whose unwritten tokens are read and masked.

    Args:
        cache: the pages of each sequence as they lie in memory, of shape (sequences, tokens, 2 * WIDTH); not
            changed. Token t of it is written at step t and read, masked until then, at every step.
        num_steps: tokens to decode, at most `tokens`.
        splits: parts in which the sum over tokens is taken; the parts are then added up. Engines choose it by
            the load: it changes the order of additions and nothing else.
        seed: of the weights and of the first tokens.

    Returns:
        The tokens, int64 of shape (sequences, num_steps).

    Example:
        >>> decode(torch.zeros(2, 16, 2 * WIDTH, dtype=torch.bfloat16), 8, splits=1).shape
        torch.Size([2, 8])
    """
    pages = cache.float()  # read as the kernel reads it: whole pages, written or not
    random = torch.Generator().manual_seed(seed)
    sequences, tokens, _ = cache.shape

    def weights(rows: int, columns: int) -> torch.Tensor:
        return (torch.randn(rows, columns, generator=random) / rows**0.5).to(cache.device)

    embedding, head = weights(VOCABULARY, WIDTH) * VOCABULARY**0.5, weights(WIDTH, VOCABULARY)
    to_cache, to_query, onward = weights(WIDTH, 2 * WIDTH), weights(WIDTH, WIDTH), weights(WIDTH, WIDTH)
    token = torch.randint(VOCABULARY, (sequences,), generator=random).to(cache.device)
    row, text = torch.zeros(sequences, WIDTH, device=cache.device), []
    for step in range(num_steps):
        hidden = torch.tanh(embedding[token] + 2 * row)
        pages[:, step] = (hidden @ to_cache).to(cache.dtype).float()
        scores = (pages[:, :, :WIDTH] * (hidden @ to_query)[:, None]).sum(2) / WIDTH**0.5
        masked = torch.arange(tokens, device=cache.device) > step
        probabilities = torch.softmax(scores.masked_fill(masked, float("-inf")), 1)
        products = probabilities[:, :, None] * pages[:, :, WIDTH:]
        row = sum(part.sum(1).to(cache.dtype) for part in products.chunk(splits, dim=1)).float()
        token = ((row + hidden @ onward) @ head).argmax(1)
        text.append(token)
    return torch.stack(text, 1)
