"""What the notebooks need on top of the core: verdicts, exercises, figures, explorers, and their runner.

Installed with ``pip install kvzero[workbook]``. The core never imports it.
"""
