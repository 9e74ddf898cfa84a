"""What a kernel of `kvzero run` reports besides its outputs: errors that no output keeps, and how it ended.

The runner starts this file as the kernel's command. It runs the real kernel and appends the exit status to the file
that ``KVZERO_WATCH`` names. Inside the kernel a start-up script calls `install`, whose hooks append a line for each
error that papermill cannot see, for each file that the kernel writes into the notebook's folder or the one above, and
when all its exit handlers have run. Standard library only: this file is run by its path, before anything is imported.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

VARIABLE = "KVZERO_WATCH"


def report(**record: object) -> None:
    """Append one record to the watch file."""
    with open(os.environ[VARIABLE], "a", encoding="utf-8") as file:
        file.write(json.dumps(record) + "\n")


def install() -> None:
    """Report from now on, in this process only: errors that no cell raises, files written, and the kernel's end."""
    import asyncio
    import atexit
    import gc
    import threading

    from IPython import get_ipython

    own_process = os.getpid()

    def seen(where: str, error: object) -> None:
        if os.getpid() == own_process:
            report(error=f"{where}: {type(error).__name__}: {error}"[:500])

    def wrap(owner, name: str, where: str, find) -> None:
        before = getattr(owner, name)

        def hook(*arguments, **options):
            error = find(*arguments, **options)
            if error is not None and not isinstance(error, SystemExit):
                seen(where, error)
            return before(*arguments, **options)

        setattr(owner, name, hook)

    def in_context(loop, context):
        return context.get("exception") or RuntimeError(context.get("message"))

    def shown(etype_value_tb=None, *_, exc_tuple=None, **__):
        return (exc_tuple or etype_value_tb or sys.exc_info())[1]

    wrap(threading, "excepthook", "in a thread", lambda arguments: arguments.exc_value)
    wrap(sys, "unraisablehook", "in a finalizer or at exit", lambda arguments: arguments.exc_value)
    wrap(asyncio.BaseEventLoop, "call_exception_handler", "in a task or callback of asyncio", in_context)
    # Cells, and everything that shows a traceback as a cell does: the Output widget, `interact`, callbacks.
    wrap(get_ipython(), "showtraceback", "shown", shown)

    def shuts_down(*_):
        waiting = {each.name for each in threading.enumerate() if not each.daemon} - {threading.main_thread().name}
        report(threads=sorted(waiting))

    def collect() -> None:
        # Tasks and finalizers that still wait report their errors now. The notebook's own exit handlers have run.
        if os.getpid() == own_process:
            get_ipython().reset(new_session=False)
            gc.collect()
            report(finished=True)

    wrap(get_ipython().kernel, "do_shutdown", "", shuts_down)
    atexit.register(collect)
    folders = {os.getcwd(), os.path.dirname(os.getcwd())}

    def audit(event: str, arguments: tuple) -> None:
        if event == "open" and arguments[2] & (os.O_WRONLY | os.O_RDWR):
            path = arguments[0]
        elif event in ("os.mkdir", "os.rename", "os.symlink", "os.link"):
            path = arguments[0 if event == "os.mkdir" else 1]
        else:
            return
        if isinstance(path, (str, bytes)):
            path = os.path.abspath(os.fsdecode(path))
            if os.path.dirname(path) in folders and os.getpid() == own_process:
                report(wrote=path)

    sys.addaudithook(audit)


def main(connection_file: str) -> int:
    """Run the kernel as a child, and report how it ended."""
    # The client signals the whole process group: the kernel shall handle an interrupt, this process outlive it.
    signal.signal(signal.SIGINT, lambda *_: None)
    kernel = subprocess.Popen([sys.executable, "-m", "ipykernel_launcher", "-f", connection_file])
    status = kernel.wait()
    report(exit=status)
    return status if status >= 0 else 128 - status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
