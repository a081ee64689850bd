"""The house: rooms import lower floors only, importing is quick and quiet, public functions read alike."""

import ast
import importlib
import inspect
import json
import subprocess
import sys
from pathlib import Path

import pytest

import cnnkit

PACKAGE = Path(cnnkit.__file__).parent
FLOORS = {
    "names": -1,
    "graph": 0,
    "data": 1,
    "augment": 2,
    "layers": 3,
    "losses": 4,
    "nets": 4,
    "parallel": 5,
    "record": 6,
    "train": 7,
    "notebook": 8,
    "lab": 9,
    "experiments": 10,
    "command": 11,
    "__main__": 12,
}
FILES = sorted(PACKAGE.rglob("*.py"))


def imports(path: Path) -> set[str]:
    """Full names of what a file imports, anywhere in it."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} imports relatively; write the full name"
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def room_of(path: Path) -> str:
    return path.relative_to(PACKAGE).with_suffix("").parts[0]


def test_every_room_has_a_floor_and_imports_only_lower_ones():
    upward = []
    for path in FILES:
        room = room_of(path)
        if room == "__init__":
            continue
        for name in imports(path):
            parts = name.split(".")
            if parts[0] != "cnnkit" or len(parts) < 2 or parts[1] in (room, "__version__"):
                continue
            home = {**cnnkit._HOMES, **cnnkit._MODULES}.get(parts[1], name).split(".")[1]
            if FLOORS[home] >= FLOORS[room]:
                upward.append(f"{path.relative_to(PACKAGE)} imports {name}")
    assert upward == []


@pytest.mark.parametrize(
    ("package", "allowed"),
    [
        ("matplotlib", {"notebook"}),
        ("ipywidgets", {"notebook"}),
        ("pynvml", {"notebook"}),
        ("pyroute2", {"lab"}),
        ("safetensors", {"record"}),
        ("optax", {"train"}),
        ("pooch", {"data"}),
    ],
)
def test_packages_stay_in_their_room(package, allowed):
    users = {room_of(path) for path in FILES if any(n.split(".")[0] == package for n in imports(path))}
    assert users <= allowed


def test_the_record_is_read_without_jax():
    users = {
        p.name for p in FILES if room_of(p) == "record" and any(n.split(".")[0] == "jax" for n in imports(p))
    }
    assert users == {"checkpoint.py"}


QUIET = """
import json, sys
import cnnkit as ck
alone = "jax" in sys.modules
from cnnkit.record.rows import Record
read = "jax" in sys.modules
import cnnkit.train.run
net = ck.serial(ck.conv(8, 3), ck.relu(), ck.dense(10))
ck.Run, ck.load, ck.fetch.every(4), ck.optim.sgd(), ck.augment.flip(), ck.nets.lenet(), ck.losses, ck.workers
from jax._src import xla_bridge
loaded = [name for name in ("matplotlib", "ipywidgets", "pynvml", "IPython", "pyroute2") if name in sys.modules]
print(json.dumps([alone, read, loaded, xla_bridge.backends_are_initialized()]))
"""


def test_importing_touches_no_device_and_draws_nothing():
    done = subprocess.run([sys.executable, "-c", QUIET], capture_output=True, text=True, cwd=PACKAGE.parent)
    assert done.returncode == 0, done.stderr
    alone, read, loaded, devices = json.loads(done.stdout)
    assert (alone, read) == (False, False), "importing cnnkit, or reading a record, loads jax"
    assert loaded == []
    assert devices is False, "importing cnnkit, or describing a network, touches a device"


def test_the_names_handed_on_are_there_and_editors_are_told_the_same():
    told = set()
    for node in ast.walk(ast.parse((PACKAGE / "__init__.py").read_text())):
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            told = {alias.name for part in node.body for alias in getattr(part, "names", [])}
    handed = {*cnnkit._MODULES, *cnnkit._HOMES}
    assert told == handed
    for name in sorted(handed):
        assert getattr(cnnkit, name) is not None
    assert handed <= set(dir(cnnkit))


def test_a_misspelt_name_suggests_the_nearest():
    with pytest.raises(
        AttributeError, match=r"module 'cnnkit' has no attribute 'sreial'; did you mean 'serial'\?"
    ):
        cnnkit.sreial  # noqa: B018
    assert not hasattr(cnnkit, "banana")


def test_every_layer_is_handed_on():
    layers = importlib.import_module("cnnkit.layers")
    makers = {
        name
        for name in layers.__all__
        if inspect.isfunction(made := getattr(layers, name))
        and made.__annotations__.get("return") in ("Layer", layers.Layer)
    }
    assert {name for name in makers if name not in cnnkit._HOMES} <= {"rebuild", "in_loop"}


def definitions():
    """(place, node) of every public function and class at the top of a module."""
    for path in FILES:
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_"):
                yield f"{path.relative_to(PACKAGE)}: {node.name}", node


def test_modules_are_named_after_what_is_in_them_and_say_so():
    for path in FILES:
        assert path.stem not in ("utils", "util", "helpers", "helper", "common", "manager", "misc")
        lines = path.read_text(encoding="utf-8").splitlines()
        assert len(lines) <= 440, f"{path.relative_to(PACKAGE)} has {len(lines)} lines: split it"
        assert lines[0].startswith('"""'), f"{path.relative_to(PACKAGE)} does not begin with what is in it"


def test_public_things_begin_with_one_line_that_ends_with_a_period():
    lacking = []
    for place, node in definitions():
        first = (ast.get_docstring(node) or "").partition("\n")[0]
        if not first.endswith("."):
            lacking.append(f"{place}: {first!r}")
    assert lacking == []


def test_keys_are_called_key_and_come_first_wherever_something_is_drawn():
    wrong = []
    for place, node in definitions():
        if not isinstance(node, ast.FunctionDef):
            continue
        names = [argument.arg for argument in node.args.posonlyargs + node.args.args]
        if {"rng", "prng", "random_key", "prng_key", "rngs"} & {
            *names,
            *(a.arg for a in node.args.kwonlyargs),
        }:
            wrong.append(f"{place}: a random key is called key")
        if node.args.kwonlyargs == [] and "key" in names[1:] and names[0] != "init":
            wrong.append(f"{place}({', '.join(names)}): key comes first")
    assert wrong == []


@pytest.mark.parametrize(
    "room", ["cnnkit.layers", "cnnkit.augment", "cnnkit.train.optim", "cnnkit.train.schedule"]
)
def test_options_of_what_people_build_with_are_keyword_only(room):
    """At most one option may be given by place, and no flag."""
    home = importlib.import_module(room)
    wrong = []
    for name in getattr(home, "__all__", [n for n in vars(home) if not n.startswith("_")]):
        made = getattr(home, name)
        if not inspect.isfunction(made):
            continue
        placed = [p for p in inspect.signature(made).parameters.values() if p.kind is p.POSITIONAL_OR_KEYWORD]
        options = [p for p in placed if p.default is not p.empty]
        if len(options) > 1 or any(isinstance(p.default, bool) for p in options):
            wrong.append(f"{name}({', '.join(p.name for p in placed)})")
    assert wrong == []
