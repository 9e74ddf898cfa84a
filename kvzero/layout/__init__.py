"""What a cache looks like: records, geometry, reading files and tensors, capturing a live engine, and 87 real layouts.

Nothing here plans, writes or judges; every other folder builds on it.
"""
