"""The processes of one notebook's run: papermill, its kernel, and whatever they start."""

from __future__ import annotations

import json
import os
import signal
import site
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from kvzero.workbook import watch

# Helpers, such as the resource tracker of multiprocessing, end soon after the process that they serve.
HELPER_SECONDS = 3.0
# Left in a folder by Jupyter and Python themselves.
NOT_OURS = frozenset({".ipynb_checkpoints", "__pycache__"})
# Papermill's command line without the current folder on its path, where a random.py or click.py might lie.
_PAPERMILL = "import sys; sys.path[:] = filter(None, sys.path); from papermill.cli import papermill; papermill()"


class Session:
    """Everything of one run: its folders, its environment, its processes.

    Args:
        folder: an empty folder of its own.
    """

    def __init__(self, folder: Path) -> None:
        self._watched = folder / "watch.jsonl"
        kernel = folder / "jupyter" / "kernels" / "kvzero"
        startup = folder / "ipython" / "profile_default" / "startup"
        for each in (kernel, startup, folder / "runtime"):
            each.mkdir(parents=True)
        command = [sys.executable, watch.__file__, "{connection_file}"]
        spec = {"argv": command, "display_name": "Python 3", "language": "python"}
        (kernel / "kernel.json").write_text(json.dumps(spec), encoding="utf-8")
        (startup / "00-watch.py").write_text(
            f"import runpy; runpy.run_path({watch.__file__!r})['install']()\n", encoding="utf-8"
        )
        # From a clone, notebooks and their children import this very kvzero, installed or not. The current folder does
        # not count, so that no file there passes for a module.
        root = Path(__file__).parents[2]
        clone = str(root) if (root / "pyproject.toml").exists() else None
        search = os.pathsep.join(filter(None, [clone, os.environ.get("PYTHONPATH")]))
        self._environment = {
            **os.environ, watch.VARIABLE: str(self._watched), "PYTHONPATH": search, "PYTHONSAFEPATH": "1",
            "JUPYTER_PATH": str(folder / "jupyter"), "JUPYTER_RUNTIME_DIR": str(folder / "runtime"),
            "IPYTHONDIR": str(folder / "ipython"),
        }  # fmt: skip
        if not os.access(os.path.expanduser("~"), os.W_OK):
            # Packages that were installed for this user alone are found all the same.
            self._environment |= {"HOME": str(folder), "PYTHONUSERBASE": site.getuserbase()}

    def papermill(
        self, notebook: Path, executed: Path, parameters: Mapping[str, object], limit: float, stop: threading.Event
    ) -> tuple[int | None, str]:
        """Exit status and stderr of papermill; the status is None if it was stopped."""
        # Papermill takes a path for a format string.
        paths = [str(path.resolve()).replace("{", "{{").replace("}", "}}") for path in (notebook, executed)]
        command = [sys.executable, "-c", _PAPERMILL, *paths, "--parameters_yaml", json.dumps(dict(parameters))]
        command += ["--kernel", "kvzero", "--language", "python", "--cwd", str(notebook.parent)]
        command += ["--no-progress-bar", "--log-level", "WARNING"]
        with tempfile.TemporaryFile() as stderr:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=stderr, env=self._environment,
                start_new_session=True,
            )  # fmt: skip
            end = time.monotonic() + limit
            while process.poll() is None and time.monotonic() < end and not stop.is_set():
                try:
                    process.wait(0.2)
                except subprocess.TimeoutExpired:
                    continue
            if process.poll() is None:
                self.end(grace=0)
                process.wait()
                return None, ""
            stderr.seek(0)
            return process.returncode, stderr.read().decode(errors="replace")

    def end(self, grace: float = HELPER_SECONDS) -> list[str]:
        """Kill what still runs after a grace in seconds; return the names of these processes.

        They are known by the watch file in their environment.
        """
        deadline = time.monotonic() + grace
        while (left := self._processes()) and time.monotonic() < deadline:
            time.sleep(0.1)
        for number in left:
            with suppress(ProcessLookupError):
                os.kill(number, signal.SIGKILL)
        return list(left.values())

    def _processes(self) -> dict[int, str]:
        """Name by process id of what runs and belongs to this run."""
        marker, found = f"{watch.VARIABLE}={self._watched}".encode(), {}
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                if marker in (entry / "environ").read_bytes().split(b"\0"):
                    name = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
                    found |= {int(entry.name): name[:100]} if name else {}
            except OSError:  # it has ended meanwhile, or belongs to somebody else
                continue
        return found

    def reports(self) -> dict[str, Any]:
        """What the kernel reported, as fields of an `Execution`."""
        records = []
        with suppress(OSError):
            for line in self._watched.read_text(encoding="utf-8", errors="replace").splitlines():
                with suppress(ValueError):  # torn where the kernel died
                    records.append(json.loads(line))
        exits = [record["exit"] for record in records if "exit" in record]
        written = dict.fromkeys(record["wrote"] for record in records if "wrote" in record)
        return {
            "errors": [record["error"] for record in records if "error" in record],
            "kernel_exit": exits[-1] if exits else None,
            "finished": any("finished" in record for record in records),
            "threads": [name for record in records for name in record.get("threads", ())],
            "written": [path for path in written if os.path.basename(path) not in NOT_OURS and os.path.exists(path)],
        }
