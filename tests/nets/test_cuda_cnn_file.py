"""CUDA-CNN's configuration files: its networks as files, what a key means, and errors with line and key."""

import re

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import cnnkit as ck
from cnnkit import nets
from cnnkit.layers import Layer, outline, rebuild
from cnnkit.nets.cuda_cnn_text import blocks


def layer(kind, name, source=None, **keys):
    lines = [f"LAYER = {kind};", f"NAME = {name};"] + ([f"INPUT = {source};"] if source else [])
    return "\n".join(["[", *lines, *(f"{key} = {value};" for key, value in keys.items()), "]", ""])


def conv(name, source, size, amount, kind="CONVCFM", **more):
    return layer(kind, name, source, KERNEL_SIZE=size, KERNEL_AMOUNT=amount, **more)


def pool(name, source, size=2, skip=2):
    return layer("POOLING", name, source, POOLINGTYPE="max", SIZE=size, SKIP=skip)


SMALL = {"WEIGHT_DECAY": "1e-6"}
RELU = {"NON_LINEARITY": "NL_RELU"}

MNIST = (
    """# digits, as shipped #
BATCH_SIZE = 128;   # images #
CHANNELS = 1; CROP = 0; SCALE = 12.0; ROTATION = 12.0; DISTORTION = 3.4;
SHOWIMAGE = false; HORIZONTAL = false; TEST_EPOCH = 15; WHITE_NOISE = 0.0;
"""
    + layer("DATA", "data")
    + conv("conv1", "data", 5, 32, NON_LINEARITY="NL_LRELU", **SMALL)
    + pool("pool1", "conv1")
    + conv("conv2", "pool1", 5, 64, **RELU, **SMALL)
    + pool("pool2", "conv2")
    + layer("FC", "fc1", "pool2", NUM_FULLCONNECT_NEURONS=512, DROPOUT_RATE=0.5, WEIGHT_DECAY="1e-8", **RELU)
    + layer("SOFTMAX", "softmax1", "fc1", NUM_CLASSES=10, **SMALL)
)

EARLIER = (
    "IS_GRADIENT_CHECKING = false; BATCH_SIZE = 200; CHANNELS = 1;\n"
    + layer("DATA", "data")
    + conv("conv1", "data", 5, 10, "CONV", WEIGHT_DECAY="1e-4", **RELU)
    + pool("pool1", "conv1")
    + conv("conv2", "pool1", 5, 20, "CONV", WEIGHT_DECAY="1e-4", **RELU)
    + pool("pool2", "conv2")
    + layer("FC", "fc1", "pool2", NUM_FULLCONNECT_NEURONS=256, **RELU)
    + layer("FC", "fc2", "fc1", NUM_FULLCONNECT_NEURONS=256, **RELU)
    + layer("SOFTMAX", "softmax1", "fc2", NUM_CLASSES=10, WEIGHT_DECAY="1e-4")
)

CIFAR = (
    "BATCH_SIZE=128;CHANNELS=3;CROP=8;HORIZONTAL=true;\n"
    + layer("DATA", "data")
    + conv("conv1", "data", 5, 32, PADDING=2, **SMALL, **RELU)
    + layer("NIN", "nin1", "conv1", KERNEL_AMOUNT=128, **SMALL, **RELU)
    + pool("pool1", "nin1", 3)
    + conv("conv2", "pool1", 5, 64, PADDING=2, **SMALL, **RELU)
    + layer("NIN", "nin2", "conv2", KERNEL_AMOUNT=128, **SMALL, **RELU)
    + pool("pool2", "nin2", 3)
    + layer("BRANCHLAYER", "fork", "pool2", OUTPUTS="wide, deep")
    + layer(
        "FC", "fc1", "fork", SUBINPUT="wide", NUM_FULLCONNECT_NEURONS=1024, DROPOUT_RATE=0.5, **SMALL, **RELU
    )
    + conv("conv3", "fork", 3, 64, SUBINPUT="deep", PADDING=1, **SMALL, **RELU)
    + layer("NIN", "nin3", "conv3", KERNEL_AMOUNT=128, **SMALL, **RELU)
    + layer("COMBINELAYER", "join", INPUTS="fc1, nin3")
    + layer("SOFTMAX", "softmax1", "join", NUM_CLASSES=10, **SMALL)
)


@pytest.fixture
def read(tmp_path):
    def made(text, shape=None):
        path = tmp_path / "net.txt"
        path.write_text(text, encoding="utf-8")
        return nets.from_cuda_cnn(path, shape)

    return made


def parameters(net, shape):
    return sum(p.size for p in jax.tree.leaves(outline(net, shape)[0]))


def test_the_networks_behind_its_claims_have_their_parameters(read):
    found = read(MNIST)
    assert parameters(found.net, (28, 28, 1)) == 582_026
    assert found.net.describe()["parts"] == nets.cuda_cnn_mnist().describe()["parts"]
    found = read(CIFAR)
    assert parameters(found.net, (24, 24, 3)) == 5_077_898
    assert outline(found.net, (24, 24, 3))[2] == (10,)
    # 10 kernels; 20 kernels, each over each of 10 maps; 200 maps of 4×4 pixels.
    dense = (200 * 16 + 1) * 256 + 257 * 256 + 257 * 10
    assert parameters(read(EARLIER).net, (28, 28, 1)) == 10 * 26 + 20 * 26 + dense


def test_what_stands_outside_of_layers_goes_to_the_run(read):
    found = read(MNIST)
    assert str(found.augment) == "scale(12) → rotate(12) → elastic(3.4)"
    assert (found.batch, found.test_epoch, found.shape) == (128, 15, (28, 28, 1))
    assert found.unused == ("line 4: SHOWIMAGE",)
    found = read(CIFAR)
    assert str(found.augment) == "crop(24) → flip()".replace("24", "(24, 24)")
    digits = ck.load("digits")
    small = read(MNIST.replace("KERNEL_SIZE = 5", "KERNEL_SIZE = 1"), digits.shape)
    run = ck.Run(small.net, digits, **small.settings)
    assert (run.batch, run.evaluate_every, run.augment) == (128, 15, small.augment)
    assert read("WHITE_NOISE=0.02;" + EARLIER).augment.describe()["parts"] == [{"name": "noise", "std": 0.01}]


EVERY = (
    "BATCH_SIZE=4;CHANNELS=4;\n"
    + layer("DATA", "d")
    + conv("c", "d", 3, 2, "CONV", initW=0.1, initType="Bernoulli", NON_LINEARITY="NL_TANH")
    + layer("LOCAL", "l", "c", KERNEL_SIZE=3, NON_LINEARITY="NL_SIGMOID", initW=1, initType="Gaussian")
    + layer("LRN", "n", "l", LRN_K=2, LRN_N=4, LRN_ALPHA=0.001, LRN_BALTA=0.75)
    + layer("NIN", "i", "n", NON_LINEARITY="NL_LRELU")
    + layer("ONE", "o", "i", WEIGHT_DECAY=0.5)
    + layer("POOLING", "p", "o", POOLINGTYPE="avr", SIZE=3, SKIP=2, KERNEL_SIZE=9)
    + layer("SOFTMAX", "s", "p", NUM_CLASSES=3)
)


def test_every_kind_of_layer_does_what_it_does_there(read):
    found = read(EVERY, (8, 8, 4))
    kinds = [(p.kind, dict(p.config)) for p in found.net.parts]
    assert [kind for kind, _ in kinds] == [
        "conv",
        "scaled_tanh",
        "local",
        "sigmoid",
        "lrn",
        "conv",
        "leaky_relu",
        "affine",
        "avg_pool",
        "dense",
    ]
    config = dict(kinds[::-1])
    assert (config["conv"]["features"], config["conv"]["groups"], config["conv"]["init"]) == (
        8,
        4,
        ("uniform", 0.1),
    )
    assert (config["local"]["groups"], config["local"]["padding"], config["local"]["init"]) == (
        8,
        "same",
        "he",
    )
    assert config["lrn"] == {"size": 5, "k": 2, "alpha": 0.0002, "beta": 0.75}
    assert found.net.parts[7].decay == 0.5
    assert outline(found.net, (8, 8, 4))[2] == (3,)
    assert rebuild(found.net.describe()).describe() == found.net.describe()
    # CONV: 2 kernels over 4 maps each; LOCAL: 9 weights and a bias for each of 6·6 places of 8 maps.
    sizes = [sum(leaf.size for leaf in jax.tree.leaves(p)) for p in outline(found.net, (8, 8, 4))[0]]
    assert sizes == [20, 0, 36 * 8 * 10, 0, 0, 72, 0, 2 * 288, 0, 9 * 8 * 3 + 3]
    assert sorted(u.split(": ")[1] for u in found.unused) == ["KERNEL_SIZE", "initType", "initW"]


def test_kernels_of_conv_go_over_every_map_alike():
    from tests import reference

    shared = ck.conv(6, 3, groups=3, tied=True)
    params, state, out = shared.init(jax.random.key(0), (5, 5, 3))
    assert (params["w"].shape, out) == ((3, 3, 1, 2), (3, 3, 6))
    params["b"] = np.array([1.0, -1.0], np.float32)
    x = np.random.default_rng(0).standard_normal((2, 5, 5, 3))
    y, _ = shared.apply(params, state, np.float32(x))
    for i in range(3):
        wanted = reference.conv(x[..., i : i + 1], np.asarray(params["w"], np.float64)) + params["b"]
        np.testing.assert_allclose(y[..., 2 * i : 2 * i + 2], wanted, atol=1e-5)


def test_local_in_groups_keeps_maps_apart():
    from tests import reference

    layer = ck.local(4, 3, padding="same", groups=2)
    params, state, _ = layer.init(jax.random.key(0), (4, 4, 6))
    x = np.random.default_rng(0).standard_normal((2, 4, 4, 6))
    y, _ = layer.apply(params, state, np.float32(x))
    w = np.asarray(params["w"], np.float64)
    assert w.shape == (4, 4, 27, 4)
    for g in range(2):
        wanted = reference.local(
            x[..., 3 * g : 3 * g + 3], w[..., 2 * g : 2 * g + 2], (3, 3), pads=((1, 1), (1, 1))
        )
        np.testing.assert_allclose(y[..., 2 * g : 2 * g + 2], wanted, atol=1e-5)
    with pytest.raises(ValueError, match=re.escape("features=5 cannot be split into groups=2")):
        ck.local(5, 3, groups=2)


def test_nothing_comes_from_the_layer_before(read):
    text = MNIST.replace("NON_LINEARITY = NL_RELU;\n", "").replace("WEIGHT_DECAY = 1e-8;\n", "")
    second = read(text).net.parts
    assert [p.kind for p in second] == [
        "conv",
        "leaky_relu",
        "max_pool",
        "conv",
        "max_pool",
        "dense",
        "dropout",
        "dense",
    ]
    assert second[5].decay == 0


def test_branches_may_stand_within_branches(read):
    text = (
        "BATCH_SIZE=2;CHANNELS=1;"
        + layer("COMBINELAYER", "outer", INPUTS="inner,c")
        + layer("COMBINELAYER", "inner", INPUTS="a,b")
        + layer("SOFTMAX", "s", "outer", NUM_CLASSES=2)
        + layer("FC", "a", "two", SUBINPUT="y", NUM_FULLCONNECT_NEURONS=3)
        + layer("FC", "b", "two", SUBINPUT="x", NUM_FULLCONNECT_NEURONS=4)
        + layer("FC", "c", "one", SUBINPUT="q", NUM_FULLCONNECT_NEURONS=5)
        + layer("BRANCHLAYER", "two", "one", SUBINPUT="p", OUTPUTS="x,y")
        + layer("BRANCHLAYER", "one", "d", OUTPUTS="p,q")
        + layer("DATA", "d")
    )
    net = read(text, (2, 2, 1)).net
    widths = [p.config["features"] for p in net.parts[0].parts[0].parts[0].parts[0].parts[:1]]
    assert widths == [3]
    assert parameters(net, (2, 2, 1)) == (4 + 1) * (3 + 4 + 5) + (12 + 1) * 2


WRONG = {
    "unclosed comment": (MNIST + "# and then", r"net.txt, line 59: the comment that begins here is not closed"),
    "unclosed block": (MNIST.rstrip().rstrip("]"), "the block that begins here is not closed: ] is missing"),
    "block in block": (MNIST.replace("]", "", 1), "line 9: a block begins inside the one of line 5"),
    "stray end": ("]" + MNIST, r"net.txt, line 1: ] closes a block, but none is open"),
    "no setting": (MNIST.replace("PADDING", "").replace("KERNEL_SIZE = 5;", "KERNEL_SIZE;", 1), "'KERNEL_SIZE;' is no setting"),
    "no semicolon": (MNIST.replace("NAME = data;", "NAME = data"), "'NAME=data' is not closed"),
    "swallowed": (MNIST.replace("KERNEL_SIZE = 5;", "KERNEL_SIZE = 5", 1), "'KERNEL_SIZE=5KERNEL_AMOUNT=32;' is no"),
    "unknown key": (MNIST.replace("KERNEL_SIZE", "KERNAL_SIZE", 1), r"line 13, KERNAL_SIZE: unknown key.*did you mean 'KERNEL_SIZE'"),
    "unknown global": ("BATCHSIZE=3;" + MNIST, r"line 1, BATCHSIZE: unknown key.*did you mean 'BATCH_SIZE'"),
    "twice": ("CROP=0;" + MNIST, "line 3, CROP: was set in line 1 already"),
    "missing key": (MNIST.replace("KERNEL_AMOUNT = 32;", ""), "line 9, KERNEL_AMOUNT: is missing; this layer needs it"),
    "missing global": (MNIST.replace("BATCH_SIZE = 128;", ""), "net.txt, BATCH_SIZE: is missing; the file needs it"),
    "no number": (MNIST.replace("KERNEL_SIZE = 5", "KERNEL_SIZE = five", 1), r"line 13, KERNEL_SIZE: is 'five'; a whole number from 1"),
    "out of range": (MNIST.replace("DROPOUT_RATE = 0.5", "DROPOUT_RATE = 1.5"), "DROPOUT_RATE: is '1.5'; a number from 0 on and below 1"),
    "no flag": (MNIST.replace("HORIZONTAL = false", "HORIZONTAL = flase"), "line 4, HORIZONTAL: unknown value 'flase': did you mean 'false'"),
    "unknown layer": (MNIST.replace("CONVCFM", "CONVCMF", 1), r"line 10, LAYER: unknown value 'CONVCMF': did you mean 'CONVCFM'"),
    "unknown input": (MNIST.replace("INPUT = pool1", "INPUT = pol1"), "INPUT: unknown layer 'pol1': did you mean 'pool1'"),
    "same name": (MNIST.replace("NAME = conv2", "NAME = conv1"), "NAME: 'conv1' is the layer of line 9 already"),
    "circle": (
        MNIST.replace("INPUT = pool1", "INPUT = data").replace("INPUT = data", "INPUT = pool1", 1),
        r"line 12, INPUT: layers in a circle: conv1 ← pool1 ← conv1",
    ),
    "itself": (MNIST.replace("INPUT = conv2", "INPUT = pool2").replace("INPUT = pool2;\nNUM", "INPUT = conv2;\nNUM"), "layers in a circle: pool2 ← pool2"),
    "twice used": (MNIST.replace("INPUT = pool2", "INPUT = conv2"), "INPUT: 'conv2' goes to 'pool2' already; a BRANCHLAYER"),
    "no end": (MNIST.replace("SOFTMAX", "FC").replace("NUM_CLASSES", "NUM_FULLCONNECT_NEURONS"), "no layer has LAYER=SOFTMAX"),
    "too large": (MNIST.replace("KERNEL_SIZE = 5", "KERNEL_SIZE = 29", 1), r"KERNEL_SIZE: is 29, too large for 28×28 pixels and PADDING=0"),
    "flat": (MNIST.replace("INPUT = fc1", "INPUT = c9") + conv("c9", "fc1", 1, 1), "INPUT: CONVCFM needs images, but 'fc1' gives a flat row"),
    "no output": (CIFAR.replace("SUBINPUT = deep", "SUBINPUT = dep"), "SUBINPUT: 'fork' has no output 'dep', but wide, deep"),
    "output twice": (CIFAR.replace("SUBINPUT = deep", "SUBINPUT = wide"), "SUBINPUT: 'wide' goes to 'fc1' already"),
    "idle output": (CIFAR.replace("wide, deep", "wide, deep, more"), "OUTPUTS: 'more' is the SUBINPUT of no layer"),
    "no branch": (CIFAR.replace("fc1, nin3", "fc1"), "NAME: 'nin3' is the INPUT of no layer|INPUTS: 1 paths of the 2"),
    "crop": (CIFAR.replace("CROP=8", "CROP=32"), "CROP: is 32; it must leave something of 32×32"),
    "channels": (CIFAR.replace("CHANNELS=3", "CHANNELS=4"), r"CHANNELS: is 4; say how large such images are: shape="),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_an_error_says_where_and_what(read, case):
    text, wanted = WRONG[case]
    with pytest.raises(ValueError, match=wanted):
        read(text)


def test_files_that_are_not_there_or_do_not_fit_the_images(read, tmp_path):
    with pytest.raises(FileNotFoundError, match="no such file; give the path of a CUDA-CNN"):
        nets.from_cuda_cnn(tmp_path / "none.txt")
    with pytest.raises(ValueError, match=re.escape("CHANNELS: is 1, but images of shape (32, 32, 3) have 3")):
        read(MNIST, (32, 32, 3))


@settings(max_examples=80, deadline=None)
@given(st.data())
def test_whatever_becomes_of_a_file_it_is_a_network_or_a_clear_error(tmp_path_factory, data):
    """Cut, double, swap or overwrite parts of a good file."""
    text = data.draw(st.sampled_from([MNIST, EARLIER, CIFAR]))
    words = re.split(r"(\s+|[=;\[\],#])", text)
    for _ in range(data.draw(st.integers(1, 4))):
        i, j = (data.draw(st.integers(0, len(words) - 1)) for _ in range(2))
        change = data.draw(st.sampled_from(["cut", "double", "swap", "take", "sign"]))
        if change == "cut":
            words[i] = ""
        elif change == "double":
            words[i] = words[i] * 2
        elif change == "swap":
            words[i], words[j] = words[j], words[i]
        elif change == "take":
            words[i] = words[j]
        else:
            words[i] = data.draw(st.text(alphabet="#[];=,0189.-eNL_\n \0é", max_size=4))
    path = tmp_path_factory.getbasetemp() / "mutated.txt"
    path.write_text("".join(words), encoding="utf-8")
    try:
        found, refused = nets.from_cuda_cnn(path), None
    except ValueError as error:
        found, refused = None, str(error)
    if found is None:
        assert re.match(r"mutated\.txt[,:] ", refused), refused
    else:
        assert isinstance(found.net, Layer)
        assert found.net.parts[-1].kind == "dense"


@settings(max_examples=60, deadline=None)
@given(st.text(alphabet="#[];=AB1 \n", max_size=60))
def test_text_of_any_kind_is_taken_apart_or_refused(text):
    try:
        (outside, found), refused = blocks(text, "f"), ""
    except ValueError as error:
        refused = str(error)
    if refused:
        assert refused.startswith("f, line ")
    else:
        kept = [s for block in (outside, *found) for s in block.settings.values()]
        plain = re.sub(r"#[^#]*#", "", text)
        assert sum(len(s.key) + len(s.value) + 2 for s in kept) == len(re.sub(r"[\s\[\]]", "", plain))
        assert all(1 <= s.line <= text.count("\n") + 1 for s in kept)
