"""What the notebooks need on top of the core: verdicts, exercises, figures, explorers, and the runner that judges them.

Installed with ``pip install kvzero[workbook]``. The core never imports it.
"""
