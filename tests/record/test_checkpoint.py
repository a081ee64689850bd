"""Checkpoints: whole or not at all, checked when read, and only for the network that they belong to."""

import errno
import json
import resource

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cnnkit.record import checkpoint

TREE = {
    "params": ({"w": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.float32(1.5)}, ()),
    "half": jnp.asarray([1.0, 2.5], jnp.bfloat16),
    "count": np.int32(7),
    "none": np.zeros((0, 4), np.float32),
    "turned": np.arange(6, dtype=np.float32).reshape(2, 3).T,
    "flags": np.array([True, False]),
}
LIKE = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(jnp.shape(leaf), jnp.asarray(leaf).dtype), TREE)
FACTS = {"epoch": 3, "clocks": {"train": 1.5}}


def stored(folder, tree=TREE):
    checkpoint.write(folder, tree, FACTS)
    return checkpoint.read_bytes(folder)


def test_a_tree_comes_back_bit_for_bit(tmp_path):
    back = checkpoint.tree_in(stored(tmp_path), LIKE)
    assert jax.tree.structure(back) == jax.tree.structure(TREE)
    for was, now in zip(jax.tree.leaves(TREE), jax.tree.leaves(back), strict=True):
        assert np.asarray(was).dtype == now.dtype
        np.testing.assert_array_equal(np.asarray(was), now)
    facts = checkpoint.read_facts(tmp_path)
    assert (facts["epoch"], facts["clocks"], facts["format"]) == (3, {"train": 1.5}, 1)
    assert checkpoint.facts_in(checkpoint.read_bytes(tmp_path)) == facts


def test_no_checkpoint_is_none(tmp_path):
    assert checkpoint.read_bytes(tmp_path) is None
    assert checkpoint.read_facts(tmp_path) is None


@pytest.mark.parametrize("keep", [0, 5, 8, 40, 0.5, -1])
def test_a_cut_file_is_damaged(tmp_path, keep):
    content = stored(tmp_path)
    end = int(len(content) * keep) if isinstance(keep, float) else keep
    with pytest.raises(
        ValueError, match=r"the checkpoint here is damaged \(.*\); delete it to start anew: the record stays"
    ):
        checkpoint.tree_in(content[:end], LIKE, "here")
    if isinstance(keep, int) and keep >= 0:
        (tmp_path / checkpoint.NAME).write_bytes(content[:end])
        with pytest.raises(ValueError, match=r"checkpoint\.safetensors is damaged"):
            checkpoint.read_facts(tmp_path)


def test_every_flipped_bit_of_the_arrays_is_noticed(tmp_path):
    content = bytearray(stored(tmp_path))
    begin = 8 + int.from_bytes(content[:8], "little")
    for at in range(begin, len(content)):
        content[at] ^= 4
        with pytest.raises(ValueError, match=r"is damaged \(its checksum is another\)"):
            checkpoint.tree_in(bytes(content), LIKE)
        content[at] ^= 4
    checkpoint.tree_in(bytes(content), LIKE)


@pytest.mark.parametrize("text", ["hello", '{"a": 1}', "[1, 2]"])
def test_another_kind_of_file_is_no_checkpoint(tmp_path, text):
    raw = text.encode()
    (tmp_path / checkpoint.NAME).write_bytes(len(raw).to_bytes(8, "little") + raw)
    with pytest.raises(ValueError, match=r"is damaged|has format None, this cnnkit reads format 1"):
        checkpoint.read_facts(tmp_path)


def test_another_format_says_what_to_do(tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoint, "FORMAT", 2)
    content = stored(tmp_path)
    monkeypatch.undo()
    message = "the checkpoint here has format 2, this cnnkit reads format 1; read it with the version that wrote it, or start in another folder="
    with pytest.raises(ValueError, match=message):
        checkpoint.tree_in(content, LIKE, "here")


@pytest.mark.parametrize(
    ("change", "difference"),
    [
        ({"count": None}, r"it has count besides"),
        ({"more": jax.ShapeDtypeStruct((), jnp.float32)}, r"it lacks more"),
        ({"count": jax.ShapeDtypeStruct((), jnp.float32)}, r"count is int32\[\], not float32\[\]"),
        (
            {"params": ({"w": jax.ShapeDtypeStruct((2, 4), jnp.float32), "b": LIKE["params"][0]["b"]}, ())},
            r"params/0/w is float32\[2, 3\], not float32\[2, 4\]",
        ),
    ],
)
def test_another_network_is_named_by_what_differs(tmp_path, change, difference):
    with pytest.raises(
        ValueError,
        match=f"the checkpoint here belongs to another network or optimizer: {difference}; "
        "use the network that it was trained with, or another folder=",
    ):
        checkpoint.tree_in(stored(tmp_path), LIKE | change, "here")


def test_a_full_disk_leaves_the_old_checkpoint(tmp_path):
    content = stored(tmp_path)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(content) // 2, before[1]))
    try:
        with pytest.raises(
            OSError,
            match=r"the checkpoint .* cannot be written \(File too large\); the one before it is whole, and the training is still in memory: free space and call fit\(\) again, or run\.save\(\) elsewhere",
        ) as caught:
            checkpoint.write(tmp_path, TREE | {"count": np.int32(8)}, FACTS)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert caught.value.errno == errno.EFBIG
    assert checkpoint.read_bytes(tmp_path) == content
    assert [path.name for path in tmp_path.iterdir()] == [checkpoint.NAME]


def test_facts_are_in_the_header_for_other_programs_to_read(tmp_path):
    from safetensors import safe_open

    stored(tmp_path)
    with safe_open(tmp_path / checkpoint.NAME, framework="numpy") as file:
        assert json.loads(file.metadata()["cnnkit"])["epoch"] == 3
        np.testing.assert_array_equal(file.get_tensor("params/0/w"), TREE["params"][0]["w"])
