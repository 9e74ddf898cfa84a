"""The sub-commands of ``python -m kvzero``, one module each.

A module has ``add_parser(subparsers)``, which declares the command, its arguments and an example, and
``run(args) -> int``, which does the work and returns the exit status. Modules are cheap to import: what they
need (torch, Jupyter) is imported inside ``run``.
"""
