"""Whether the code of a cell runs a shell whose exit status nobody looks at."""

from __future__ import annotations

import ast

# Run a line or a cell of code themselves.
_WRAPPERS = frozenset({"capture", "prun", "time", "timeit"})
_SHELL_MAGICS = frozenset({"!", "!!", "sc", "sx", "system"})
# Raise CalledProcessError unless told otherwise.
_SCRIPTS = frozenset({"bash", "perl", "python", "python2", "python3", "pypy", "ruby", "script", "sh"})
_UNCHECKED = ("--bg", "--no-raise-error")


def runs_a_shell(source: str) -> bool:
    """Judge the source that IPython makes of a cell.

    Args:
        source: the cell, magics and shell lines included.

    Returns:
        True if it runs a command of which the status is dropped: `!command`, `%sx`, `%%system`, `ip.system(...)`,
        `os.system(...)`, `%%bash --no-raise-error`, also behind `%time` and its like.

    Example:
        >>> runs_a_shell("files = !ls"), runs_a_shell("print('no shell: !ls')")
        (True, False)
    """
    from IPython.core.inputtransformer2 import TransformerManager

    try:
        tree = ast.parse(TransformerManager().transform_cell(source))
    except SyntaxError:
        return False  # it will not run
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)]
    return any(_is_shell(call.func.attr, call.args) for call in calls)


def _is_shell(name: str, arguments: list[ast.expr]) -> bool:
    words = [node.value if isinstance(node, ast.Constant) else None for node in arguments]
    if name in ("getoutput", "popen", "system", "system_piped", "system_raw"):
        return bool(arguments)
    if name not in ("run_cell_magic", "run_line_magic", "magic") or not words or not isinstance(words[0], str):
        return False
    magic, line = words[0], next((word for word in words[1:] if isinstance(word, str)), "")
    if magic in _SHELL_MAGICS:
        return True
    if magic in _SCRIPTS:
        return any(option in line for option in _UNCHECKED)
    return magic in _WRAPPERS and any(isinstance(word, str) and runs_a_shell(word) for word in words[1:])
