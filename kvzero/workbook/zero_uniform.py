"""A kernel with the signature of #35219, compiled as it was then and as #49903 left it, to count what compiles.

The signature (which argument is a pointer, a number, a constant) is the one that the compile log of #47546 shows;
the body is ours. Annotations are evaluated here (no ``from __future__``): Triton reads them.
"""

import triton.language as tl

from ..kernel import jit_both


def _zero_uniform(
    addresses,  # *int64 (segments,): where each segment's block 0 starts
    ids,  # *int64 (ids,): block ids
    num_ids,  # int: without an annotation, as upstream: Triton may specialise it
    SEGMENTS: tl.constexpr,
    PAGE_WORDS: tl.constexpr,  # words of every page, and words from one block to the next
    CHUNK_WORDS: tl.constexpr,  # divides the page
):
    program = tl.program_id(0)
    chunks = PAGE_WORDS // CHUNK_WORDS
    which = program // (SEGMENTS * chunks)
    if which < num_ids:
        rest = program % (SEGMENTS * chunks)
        block = tl.load(ids + which)
        words = tl.load(addresses + rest // chunks).to(tl.pointer_type(tl.int32))
        start = block * PAGE_WORDS + (rest % chunks).to(tl.int64) * CHUNK_WORDS
        tl.store(words + start + tl.arange(0, CHUNK_WORDS), 0)


specialised, specialised_interpreted = jit_both(_zero_uniform)
plain_count, plain_count_interpreted = jit_both(_zero_uniform, do_not_specialize=["num_ids"])
