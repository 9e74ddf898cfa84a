"""Clearing a plan's bytes: `zeroer` is what users call; `backends` launch, `tiles` and `kernel` do the writing.

`ids` checks block ids, `idring` carries many of them to the GPU, `memory` binds storages to addresses.
"""
