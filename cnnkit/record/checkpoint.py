"""Checkpoints: every array of a run in one safetensors file, replaced whole, checked when read."""

import json
import os
from pathlib import Path
from typing import Any

import jax
import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from cnnkit.record.folder import write_whole

FORMAT = 1
NAME = "checkpoint.safetensors"


def write(folder: str | os.PathLike[str], tree: Any, facts: dict[str, Any]) -> Path:
    """Write a tree of arrays and plain facts about it.

    Args:
        folder: the run's folder.
        tree: any pytree of arrays.
        facts: numbers, strings, lists and dictionaries that JSON can hold, e.g. the epoch.

    Raises:
        OSError: read-only or full disk; the checkpoint written before is as it was.
    """
    arrays = {key: np.asarray(leaf, order="C") for key, leaf in flatten(tree).items()}
    text = json.dumps({"format": FORMAT, **facts})
    path = Path(folder) / NAME
    try:
        write_whole(path, save(arrays, metadata={"cnnkit": text}))
    except OSError as error:
        raise type(error)(
            error.errno,
            f"the checkpoint {path} cannot be written ({error.strerror}); the one before it is whole, and the "
            "training is still in memory: free space and call fit() again, or run.save() elsewhere",
        ) from error
    return path


def read_facts(folder: str | os.PathLike[str]) -> dict[str, Any] | None:
    """What was said of the arrays; None where the folder has no checkpoint.

    Raises:
        ValueError: the file is damaged or of another format.
    """
    path = Path(folder) / NAME
    if not path.exists():
        return None
    with _opened(path) as file:
        return _facts(path, file.metadata())


def read(folder: str | os.PathLike[str], like: Any) -> tuple[Any, dict[str, Any]]:
    """The tree and facts of a folder's checkpoint.

    Args:
        folder: the run's folder.
        like: a tree of arrays or of ``jax.ShapeDtypeStruct`` with the shapes and dtypes expected.

    Raises:
        ValueError: damaged, of another format, or of another network; the text names what differs.
    """
    path = Path(folder) / NAME
    wanted = flatten(like)
    with _opened(path) as file:
        facts = _facts(path, file.metadata())
        found = set(file.keys())
        missing, extra = sorted(set(wanted) - found), sorted(found - set(wanted))
        if missing or extra:
            parts = [f"it lacks {', '.join(missing[:3])}"] if missing else []
            parts += [f"it has {', '.join(extra[:3])} besides"] if extra else []
            raise ValueError(_other_net(path, " and ".join(parts)))
        leaves = {key: file.get_tensor(key) for key in wanted}
    for key, leaf in leaves.items():
        want = wanted[key]
        if leaf.shape != tuple(want.shape) or leaf.dtype != want.dtype:
            raise ValueError(
                _other_net(
                    path, f"{key} is {leaf.dtype}{list(leaf.shape)}, not {want.dtype}{list(want.shape)}"
                )
            )
    structure = jax.tree.structure(like)
    return jax.tree.unflatten(structure, [leaves[key] for key in wanted]), facts


def flatten(tree: Any) -> dict[str, Any]:
    """Leaves by their path in the tree, e.g. ``params/0/w``."""
    pairs, _ = jax.tree_util.tree_flatten_with_path(tree)
    return {jax.tree_util.keystr(path, simple=True, separator="/"): leaf for path, leaf in pairs}


def _opened(path: Path) -> Any:
    try:
        return safe_open(path, framework="numpy")
    except (SafetensorError, OSError) as error:
        raise ValueError(
            f"the checkpoint {path} is damaged ({error}); delete it to start anew: the record stays"
        ) from error


def _facts(path: Path, metadata: dict[str, str] | None) -> dict[str, Any]:
    facts = json.loads((metadata or {}).get("cnnkit", "{}"))
    if facts.get("format") != FORMAT:
        raise ValueError(
            f"the checkpoint {path} has format {facts.get('format')}, this cnnkit reads format {FORMAT}; "
            "read it with the version that wrote it, or start in another folder="
        )
    return facts


def _other_net(path: Path, difference: str) -> str:
    return (
        f"the checkpoint {path} belongs to another network or optimizer: {difference}; "
        "use the network that it was trained with, or another folder="
    )
