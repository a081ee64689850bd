"""Checkpoints: every array of a run in one safetensors file, replaced whole, checked when read."""

import json
import os
import zlib
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from safetensors.numpy import save

from cnnkit.record.folder import CHECKPOINT, write_whole

FORMAT = 1
NAME = CHECKPOINT

_DTYPES: dict[str, Any] = {
    f"{kind}{8 * size}": f"<{kind.lower()}{size}" for kind in "FIU" for size in (1, 2, 4, 8)
}
_DTYPES |= {"BOOL": np.bool_, "BF16": jnp.bfloat16}


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
    text = json.dumps({"format": FORMAT, "crc32": _crc32(arrays), **facts})
    path = Path(folder) / NAME
    try:
        write_whole(path, save(arrays, metadata={"cnnkit": text}))
    except OSError as error:
        raise OSError(
            error.errno,
            f"the checkpoint {path} cannot be written ({error.strerror}); the one before it is whole, and the "
            "training is still in memory: free space and call fit() again, or run.save() elsewhere",
        ) from error
    return path


def read_bytes(folder: str | os.PathLike[str]) -> bytes | None:
    """A folder's checkpoint as it lies there, None where there is none."""
    path = Path(folder) / NAME
    return path.read_bytes() if path.exists() else None


def read_facts(folder: str | os.PathLike[str]) -> dict[str, Any] | None:
    """What was said of the arrays in a folder's checkpoint, None where there is none; arrays are not read.

    Raises:
        ValueError: as `facts_in`.
    """
    path = Path(folder) / NAME
    if not path.exists():
        return None
    with path.open("rb") as file:
        size = file.read(8)
        return facts_in(size + file.read(min(int.from_bytes(size, "little"), path.stat().st_size)), path)


def facts_in(content: bytes, path: str | os.PathLike[str] = NAME) -> dict[str, Any]:
    """What was said of the arrays.

    Args:
        content: of a checkpoint's file, at least up to its arrays.
        path: how to name it in errors.

    Raises:
        ValueError: it is damaged or of another format.
    """
    try:
        size = int.from_bytes(content[:8], "little")
        said = json.loads(content[8 : 8 + size])
        facts = json.loads(said.get("__metadata__", {}).get("cnnkit", "{}"))
    except (ValueError, AttributeError) as error:
        raise ValueError(_damaged(path, error)) from error
    if facts.get("format") != FORMAT:
        raise ValueError(
            f"the checkpoint {path} has format {facts.get('format')}, this cnnkit reads format {FORMAT}; "
            "read it with the version that wrote it, or start in another folder="
        )
    return facts


def tree_in(content: bytes, like: Any, path: str | os.PathLike[str] = NAME) -> Any:
    """The tree of arrays.

    Args:
        content: of a checkpoint's file.
        like: a tree of arrays or of ``jax.ShapeDtypeStruct`` with the shapes and dtypes expected.
        path: how to name it in errors.

    Raises:
        ValueError: damaged, of another format, or of another network; the text names what differs.
    """
    facts = facts_in(content, path)
    try:
        leaves = _arrays(content)
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(_damaged(path, error)) from error
    if facts.get("crc32") != _crc32(leaves):
        raise ValueError(_damaged(path, "its checksum is another"))
    wanted = flatten(like)
    missing, extra = sorted(set(wanted) - set(leaves)), sorted(set(leaves) - set(wanted))
    if missing or extra:
        parts = [f"it lacks {', '.join(missing[:3])}"] if missing else []
        parts += [f"it has {', '.join(extra[:3])} besides"] if extra else []
        raise ValueError(_other_net(path, " and ".join(parts)))
    for key, want in wanted.items():
        leaf = leaves[key]
        if leaf.shape != tuple(want.shape) or leaf.dtype != want.dtype:
            found = f"{key} is {leaf.dtype}{list(leaf.shape)}, not {want.dtype}{list(want.shape)}"
            raise ValueError(_other_net(path, found))
    return jax.tree.unflatten(jax.tree.structure(like), [leaves[key] for key in wanted])


def flatten(tree: Any) -> dict[str, Any]:
    """Leaves by their path in the tree, e.g. ``params/0/w``."""
    pairs, _ = jax.tree_util.tree_flatten_with_path(tree)
    return {jax.tree_util.keystr(path, simple=True, separator="/"): leaf for path, leaf in pairs}


def _arrays(content: bytes) -> dict[str, np.ndarray]:
    # Not by the package's own reader, which for NumPy has no bfloat16.
    size = int.from_bytes(content[:8], "little")
    data = memoryview(content)[8 + size :]
    arrays = {}
    for key, said in json.loads(content[8 : 8 + size]).items():
        if key != "__metadata__":
            begin, end = said["data_offsets"]
            arrays[key] = np.frombuffer(data[begin:end], _DTYPES[said["dtype"]]).reshape(said["shape"])
    return arrays


def _crc32(arrays: dict[str, np.ndarray]) -> int:
    total = 0
    for key in sorted(arrays):
        total = zlib.crc32(np.ascontiguousarray(arrays[key]).reshape(-1).view(np.uint8).data, total)
    return total


def _damaged(path: str | os.PathLike[str], why: object) -> str:
    return f"the checkpoint {path} is damaged ({why}); delete it to start anew: the record stays"


def _other_net(path: str | os.PathLike[str], difference: str) -> str:
    return (
        f"the checkpoint {path} belongs to another network or optimizer: {difference}; "
        "use the network that it was trained with, or another folder="
    )
