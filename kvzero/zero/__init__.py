"""Clearing a plan's bytes: `zeroer` is what users call; `backends` carry a plan out, `tiles` and `kernel` write.

`ids` checks block ids and holds those that change between replays of a graph, `memory` binds storages to addresses.
"""
