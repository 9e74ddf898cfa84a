"""What is installed, what it needs, and what a newcomer is told: one truth in several files."""

from __future__ import annotations

import ast
import graphlib
import os
import re
import shlex
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement

import kvzero
from kvzero.__main__ import COMMANDS, main
from kvzero.workbook.cover import PATH, cover_steps, cover_svg

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
README = (ROOT / "README.md").read_text(encoding="utf-8")
OUTSIDE_CORE = {
    "__main__",
    "bench",
    "cli",
    "device",
    "vllm",
    "outputs",
    "ranks",
    "triage",
    "workbook",
}
PACKAGE = sorted((ROOT / "kvzero").rglob("*.py"))


def _constraints() -> list[Requirement]:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    return [Requirement(line) for line in lines if line and not line.startswith("#")]


def _make(*arguments: str) -> str:
    """What make would run."""
    command = ["make", "--dry-run", "--no-print-directory", *arguments]
    return subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout


def _pip_arguments(text: str) -> list[str]:
    line = next(line for line in text.splitlines() if "-m pip install" in line)
    words = line.replace("'", "").split()
    return [
        word
        for word in words[words.index("install") + 1 :]
        if word not in ("--quiet", "--disable-pip-version-check")
    ]


def test_environment_file_installs_exactly_what_make_installs(tmp_path):
    environment = yaml.safe_load((ROOT / "environment.yml").read_text(encoding="utf-8"))
    *conda, pip = environment["dependencies"]
    assert [re.match(r"\w+", name).group() for name in conda] == ["python", "pip"]
    assert environment["channels"][0] == "conda-forge"
    from_file = [word for line in pip["pip"] for word in line.split()]
    assert from_file == _pip_arguments(_make("test", f"VENV={tmp_path / 'venv'}"))
    assert from_file == ["-c", "constraints.txt", "-e", ".[workbook,test]"]
    python = next(name for name in conda if name.startswith("python"))
    assert python.removeprefix("python") == PROJECT["project"]["requires-python"]


def test_setup_is_done_once(tmp_path):
    assert "-m pip install" in _make("run", f"VENV={tmp_path}")
    (tmp_path / ".installed").touch()
    assert _make("run", f"VENV={tmp_path}").splitlines() == [f"{tmp_path}/bin/python -m kvzero run"]
    (line,) = _make("test", f"VENV={tmp_path}").splitlines()
    assert line.startswith(f"{tmp_path}/bin/python -m pytest ")


def test_a_server_keeps_its_own_torch(tmp_path):
    text = _make("run", f"VENV={tmp_path / 'venv'}", "SYSTEM_TORCH=1")
    assert "-m venv --system-site-packages" in text
    assert "constraints" not in text


def test_the_core_needs_three_packages():
    names = {Requirement(line).name for line in PROJECT["project"]["dependencies"]}
    assert names == {"torch", "triton", "numpy"}


def test_constraints_fit_what_the_project_asks_for():
    extras = PROJECT["project"]["optional-dependencies"]
    lines = [*PROJECT["project"]["dependencies"], *extras["workbook"], *extras["test"]]
    asked = {requirement.name: requirement for requirement in map(Requirement, lines)}
    for constraint in _constraints():
        # A constraint on something that is not asked for would constrain nothing. nbclient comes with papermill.
        assert constraint.name in asked or constraint.name == "nbclient"
    (torch,) = (constraint for constraint in _constraints() if constraint.name == "torch")
    (pin,) = torch.specifier
    assert pin.operator == "=="
    assert asked["torch"].specifier.contains(pin.version)


def _imports(path: Path) -> set[str]:
    """Top-level names of everything that a module imports, its own package's modules as `kvzero.name`."""
    found = set()
    package = path.relative_to(ROOT).parent.parts
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            module = ".".join([*base, *([node.module] if node.module else [])])
            found |= {module} if module != "kvzero" else {f"kvzero.{alias.name}" for alias in node.names}
    return {
        ".".join(name.split(".")[:2]) if name.startswith("kvzero") else name.split(".")[0] for name in found
    }


def _is_core(path: Path) -> bool:
    return path.relative_to(ROOT / "kvzero").parts[0].removesuffix(".py") not in OUTSIDE_CORE


@pytest.mark.parametrize(
    "path", list(filter(_is_core, PACKAGE)), ids=lambda path: str(path.relative_to(ROOT))
)
def test_the_core_imports_only_its_three_packages_and_itself(path):
    imports = _imports(path)
    outside = {name for name in imports if not name.startswith("kvzero")} - set(sys.stdlib_module_names)
    assert outside <= {"torch", "triton", "numpy"}
    ours = {name.split(".")[1] for name in imports if name.startswith("kvzero.")}
    assert not ours & OUTSIDE_CORE


def test_the_import_check_sees_an_import(tmp_path):
    assert {"pytest", "ast", "kvzero.__main__"} <= _imports(Path(__file__))


@pytest.mark.parametrize("path", PACKAGE, ids=lambda path: str(path.relative_to(ROOT)))
def test_files_can_be_read_in_one_sitting(path):
    assert len(path.read_text(encoding="utf-8").splitlines()) <= 400


def test_every_data_file_is_packaged():
    patterns = PROJECT["tool"]["setuptools"]["package-data"]
    listed = subprocess.run(["git", "ls-files", "kvzero"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode:
        pytest.skip("not a git checkout, so there is no list of the project's files")
    data = [Path(line) for line in listed.stdout.splitlines() if not line.endswith(".py")]
    assert data
    for path in data:
        package = ".".join(path.parent.parts)
        assert any(path.match(pattern) for pattern in patterns.get(package, ())), path


def test_every_exported_name_is_there():
    for name in kvzero.__all__:
        assert getattr(kvzero, name) is not None
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = kvzero.nothing


@pytest.mark.parametrize(
    ("statement", "absent"),
    [
        ("import kvzero", {"IPython", "papermill", "ipywidgets"}),
        ("from kvzero.__main__ import main; main(['--help'])", {"IPython", "papermill", "ipywidgets"}),
        (
            "from kvzero.__main__ import main; main(['plan', 'dsv4_c4_mla_only__BLHNC'])",
            {"IPython", "papermill", "ipywidgets"},
        ),
    ],
)
def test_what_is_not_needed_is_not_imported(statement, absent):
    code = f"try:\n    {statement}\nexcept SystemExit:\n    pass\nimport sys\nprint(sorted(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not absent & set(ast.literal_eval(done.stdout.splitlines()[-1]))


def test_only_run_needs_the_extra(tmp_path):
    extra = map(Requirement, PROJECT["project"]["optional-dependencies"]["workbook"])
    absent = [*(requirement.name for requirement in extra), "nbformat", "IPython", "pygments"]
    name = "dsv4_c4_mla_only__BLHNC"
    lines = [["plan", name], ["audit", name, "--device", "cpu"], ["triage", name, "--html", "t.html"]]
    lines += [["bench", "--device", "cpu"], ["run", "x.ipynb"]]
    code = f"import sys\nsys.modules |= dict.fromkeys({absent})\nfrom kvzero.__main__ import main\n"
    code += f"codes = [main(line) for line in {lines}]\nprint()\nprint(codes)"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.stdout.splitlines()[-1:] == ["[0, 0, 0, 0, 2]"], done.stderr
    assert "[extra-missing]" in done.stderr


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_with_an_example(command, capsys):
    with pytest.raises(SystemExit) as stop:
        main([command, "--help"])
    assert stop.value.code == 0
    assert f"kvzero {command}" in capsys.readouterr().out.partition("examples:")[2]


@pytest.mark.parametrize("words", [[], ["plam"], ["plan"], ["run", "--device", "tpu"]])
def test_a_wrong_command_line_is_one_line_and_exit_2(words, capsys):
    assert main(words) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert re.fullmatch(r"error \[usage\]: .*\(see `kvzero.* --help`\)\n", err)


def test_a_wrong_command_line_is_json_where_json_was_asked_for(capsys):
    assert main(["plan", "--json"]) == 2
    out, err = capsys.readouterr()
    assert out.startswith('{"error": {"rule": "usage", "message": "')
    assert err == ""


def test_a_reader_that_leaves_is_no_fault():
    command = f"{shlex.quote(sys.executable)} -m kvzero plan dsv4_c4_mla_only__BLHNC | true"
    done = subprocess.run(["bash", "-o", "pipefail", "-c", command], cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_ci_script_stops_at_the_first_failure():
    script = ROOT / ".ci" / "run"
    assert script.stat().st_mode & 0o111
    lines = script.read_text(encoding="utf-8").splitlines()
    assert "set -euo pipefail" in lines
    assert {"make lint", "make test"} <= set(lines)


def _code_blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README, re.MULTILINE | re.DOTALL)


def test_readme_shows_a_newcomer_two_commands():
    first_screen = README.partition("\n## ")[0]
    (block,) = re.findall(r"^```\n(.*?)^```", first_screen, re.MULTILINE | re.DOTALL)
    assert [line.split("#")[0].split() for line in block.splitlines()] == [["make", "run"], ["make", "test"]]
    assert re.search(r"!\[[^\]]{20,}\]\(", first_screen)


def test_readme_snippet_runs_and_prints_what_it_says(capsys):
    (snippet,) = _code_blocks("python")
    exec(compile(snippet, "README.md", "exec"), {"__name__": "__main__"})
    assert capsys.readouterr().out == README.partition(snippet)[2].split("```\n")[2]
    assert len([line for line in snippet.splitlines() if line.strip()]) <= 10


def test_readme_links_lead_somewhere():
    targets = re.findall(r"\]\(([^)#]+)\)", README)
    assert targets
    assert [target for target in targets if not (ROOT / target).exists()] == []


def test_readme_lists_every_notebook():
    listed = re.findall(r"\]\(notebooks/([\w.]+\.ipynb)\)", README)
    assert listed == sorted(path.name for path in (ROOT / "notebooks").glob("*.ipynb"))


def test_readme_picture_is_current_and_described():
    assert f"![{cover_steps()[1][1]}]({PATH.as_posix()})" in README
    assert (ROOT / PATH).read_text(encoding="utf-8") == cover_svg()


def _imported(path: Path, name: str, names: set[str]) -> set[str]:
    """The modules of the package that a module imports, at the top or later."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom):
            parents = name.split(".") if path.name == "__init__.py" else name.split(".")[:-1]
            start = ".".join(parents[: len(parents) - node.level + 1]) if node.level else ""
            origin = ".".join(part for part in (start, node.module) if part)
            found |= {f"{origin}.{alias.name}" if f"{origin}.{alias.name}" in names else origin for alias in node.names}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return found & names - {name}


def test_imports_go_one_way():
    """No cycle, not even one that an import inside a function hides."""
    names = {
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path for path in PACKAGE
    }
    graph = {name: _imported(path, name, set(names)) for name, path in names.items()}
    assert "kvzero.audit.blocks" in graph["kvzero.audit.arena"]
    graphlib.TopologicalSorter(graph).prepare()  # raises CycleError, which names the cycle
    # Folders as a whole do not go round in a circle either, such as commands that need the workbook that needs them.
    folders = {name: set() for name in map(_folder, names)}
    for name, imported in graph.items():
        folders[_folder(name)] |= set(map(_folder, imported)) - {_folder(name)}
    graphlib.TopologicalSorter(folders).prepare()


def _folder(name: str) -> str:
    """A module of the package itself, or the folder that a module lies in."""
    return ".".join(name.split(".")[:2])


def test_the_source_distribution_carries_every_file(tmp_path):
    pytest.importorskip("setuptools", reason="not available here: no setuptools to build with")
    archive = subprocess.run(["git", "archive", "HEAD"], cwd=ROOT, capture_output=True)
    if archive.returncode:
        pytest.skip("not a git checkout, so there is no list of the project's files")
    clone = tmp_path / "a clone"
    clone.mkdir()
    subprocess.run(["tar", "x", "-C", str(clone)], input=archive.stdout, check=True)
    shutil.copy(ROOT / "MANIFEST.in", clone)
    code = f"from setuptools import build_meta; build_meta.build_sdist({str(tmp_path)!r})"
    subprocess.run([sys.executable, "-c", code], cwd=clone, capture_output=True, check=True)
    (built,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(built) as file:
        carried = {name.partition("/")[2] for name in file.getnames()}
    committed = {str(path.relative_to(clone)) for path in clone.rglob("*") if path.is_file()}
    committed = {name for name in committed if not name.startswith(("kvzero.egg-info/", "build/"))}
    assert committed - carried == set()
