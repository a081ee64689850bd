"""What every augmentation keeps to: keys, shapes, dtypes, chains, records, errors, conventions."""

import inspect
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cnnkit import augment as ck
from cnnkit.augment.base import OPTIONS

SHAPE = (12, 10, 3)
ALL = {
    "brightness": ck.brightness(0.2),
    "contrast": ck.contrast(0.3),
    "crop": ck.crop((8, 6), pad=2, outside="reflect"),
    "cutout": ck.cutout(4, background=0.5),
    "elastic": ck.elastic(3.4, sigma=3.0),
    "flip": ck.flip(axis="vertical", rate=0.4),
    "noise": ck.noise(0.1),
    "normalize": ck.normalize((0.1, 0.2, 0.3), 0.25),
    "rotate": ck.rotate(12),
    "scale": ck.scale(12, together=True),
    "translate": ck.translate(1.5, background=1.0),
    "chain": ck.chain(
        ck.flip(), ck.crop(8, pad=1), ck.scale(10), ck.rotate(20), ck.elastic(3), ck.noise(0.1)
    ),
}
MAKERS = {name: getattr(ck, name) for name in ALL if name != "chain"}
each = pytest.mark.parametrize("augment", ALL.values(), ids=ALL.keys())


def images(count=6, shape=SHAPE, seed=0):
    return jnp.asarray(np.random.default_rng(seed).integers(0, 256, (count, *shape)) / 255, jnp.float32)


def equations(jaxpr):
    for equation in jaxpr.eqns:
        yield equation
        for value in equation.params.values():
            if hasattr(value, "jaxpr"):
                yield from equations(value.jaxpr)


def traced(augment, shape=(6, *SHAPE)):
    made = jax.make_jaxpr(lambda key, x: augment(key, x))(jax.random.key(0), jnp.zeros(shape))
    return list(equations(made.jaxpr))


@each
def test_the_same_key_gives_the_same_images_and_another_key_others(augment):
    x = images()
    one, again, other = (np.asarray(augment(jax.random.key(k), x)) for k in (1, 1, 2))
    np.testing.assert_array_equal(one, again)
    assert augment.name == "normalize" or np.abs(one - other).max() > 0.01


@each
def test_equal_images_in_a_batch_get_different_draws(augment):
    x = jnp.repeat(images(1), 6, axis=0)
    out = np.asarray(augment(jax.random.key(0), x)).reshape(6, -1)
    kinds = len(np.unique(out.round(6), axis=0))
    assert kinds == {"normalize": 1, "flip": 2, "cutout": kinds, "crop": kinds}.get(augment.name, 6)
    assert kinds >= 4 or augment.name in ("normalize", "flip")


@each
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_shape_and_dtype_are_those_announced(augment, dtype):
    x = jax.ShapeDtypeStruct((5, *SHAPE), dtype)
    train = jax.eval_shape(lambda x: augment(jax.random.key(0), x), x)
    test = jax.eval_shape(augment.test, x)
    assert train.shape == test.shape == (5, *augment.out_shape(SHAPE))
    assert train.dtype == test.dtype == dtype


@pytest.mark.parametrize("name", ["contrast", "crop", "chain"])
def test_bfloat16_is_computed_in_float32_and_rounded_once(name):
    augment = ALL[name]
    x = images().astype(jnp.bfloat16)
    exact = augment(jax.random.key(3), x.astype(jnp.float32))
    np.testing.assert_array_equal(
        np.asarray(augment(jax.random.key(3), x), np.float32),
        np.asarray(exact.astype(jnp.bfloat16), np.float32),
    )


@each
def test_a_record_makes_the_same_augmentation_again(augment):
    again = ck.rebuild(json.loads(json.dumps(augment.describe())))
    assert str(again) == str(augment)
    assert again.describe() == augment.describe()
    for one, other in zip(*(a.leaves for a in (again, augment)), strict=True):
        assert one.kind is other.kind or one.kind.join is None


def test_a_chain_made_again_from_its_record_draws_the_same():
    again, x = ck.rebuild(json.loads(json.dumps(ALL["chain"].describe()))), images()
    np.testing.assert_array_equal(again(jax.random.key(5), x), ALL["chain"](jax.random.key(5), x))


def test_a_record_holds_every_setting():
    assert ck.crop((8, 6), pad=2).describe() == {
        "name": "crop", "size": [8, 6], "pad": 2, "outside": "background", "background": 0.0
    }  # fmt: skip
    assert json.dumps(ck.crop(np.int64(8), pad=np.int32(2)).describe()["pad"]) == "2"
    assert json.dumps(ck.rotate(np.float32(2)).describe()["degrees"]) == "2.0"
    assert ck.chain(ck.rotate(12), ck.flip()).describe()["parts"] == [
        {"name": "rotate", "degrees": 12, "background": 0.0},
        {"name": "flip", "axis": "horizontal", "rate": 0.5, "mode": "random"},
    ]


def test_a_mean_image_is_recorded_by_its_checksum_and_asked_for_again():
    augment = ck.normalize(np.full(SHAPE, 0.5), 1.0)
    described = augment.describe()
    assert described["mean"]["shape"] == list(SHAPE)
    assert described["mean"] != ck.normalize(np.full(SHAPE, 0.4), 1.0).describe()["mean"]
    with pytest.raises(ValueError, match=r"normalize: of mean, an image, only the checksum .* was recorded"):
        ck.rebuild(described)


def test_nested_chains_are_one_chain():
    a, b, c = ck.rotate(12), ck.noise(0.1), ck.flip()
    x, key = images(), jax.random.key(0)
    np.testing.assert_array_equal(ck.chain(a, ck.chain(b, c))(key, x), ck.chain(a, b, c)(key, x))


def test_an_empty_chain_changes_nothing():
    x = images()
    np.testing.assert_array_equal(ck.chain()(jax.random.key(0), x), x)
    assert str(ck.chain()) == "chain()"


def test_a_chain_draws_random_numbers_once_and_calls_nothing_on_the_host():
    names = [equation.primitive.name for equation in traced(ALL["chain"])]
    assert names.count("random_bits") == 1
    assert not [name for name in names if "callback" in name]


def test_neighbours_read_the_pixels_once():
    def reads(augment):
        found = [e for e in traced(augment) if e.primitive.name == "gather"]
        return sum(e.invars[0].aval.size >= 6 * 12 * 10 * 3 for e in found)

    assert reads(ck.rotate(5)) == 4
    assert reads(ck.chain(ck.scale(5), ck.rotate(5), ck.translate(1), ck.elastic(3))) == 4
    assert reads(ck.chain(ck.scale(5), ck.noise(0.1), ck.rotate(5))) == 8
    assert reads(ck.chain(ck.scale(5), ck.rotate(5, background=1.0))) == 8
    assert reads(ck.chain(ck.flip(), ck.crop(8, pad=2, background=1.0), ck.flip(axis="vertical"))) == 1
    assert reads(ck.chain(ck.crop(8, pad=2, outside="reflect"), ck.crop(8, pad=2, background=1.0))) == 1


def test_parts_of_a_chain_draw_independently():
    angle, factor = [], []
    turn, grow = ck.chain(ck.rotate(10), ck.scale(10, together=True)).sample(
        jax.random.key(0), (4000, 8, 8, 1)
    )
    angle, factor = np.asarray(turn.matrix[:, 0, 1]), np.asarray(grow.matrix[:, 0, 0])
    assert abs(np.corrcoef(angle, factor)[0, 1]) < 0.05


def test_inside_a_loop_it_is_what_it_is_outside():
    augment, x = ALL["chain"], images(4, (12, 12, 1))
    keys = jax.random.split(jax.random.key(0), 3)

    def step(i, done):
        return done.at[i].set(augment(keys[i], x))

    looped = jax.jit(lambda: jax.lax.fori_loop(0, 3, step, jnp.zeros((3, 4, 8, 8, 1))))()
    outside = jnp.stack([augment(key, x) for key in keys])
    np.testing.assert_allclose(looped, outside, atol=1e-5)


def test_evaluation_crops_the_middle_and_normalizes_and_does_nothing_else():
    x = images()
    parts = [a for name, a in ALL.items() if name not in ("chain", "crop", "normalize")]
    np.testing.assert_array_equal(ck.chain(*parts).test(x), x)
    augment = ck.chain(*parts, ck.crop((8, 6)), ck.normalize((0.1, 0.2, 0.3), 0.5))
    expected = (np.asarray(x)[:, 2:10, 2:8] - np.float32([0.1, 0.2, 0.3])) / np.float32(0.5)
    np.testing.assert_allclose(augment.test(x), expected, rtol=1e-6)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: ck.rotate(-3), r"rotate: degrees must be a number of at least 0, got -3"),
        (lambda: ck.rotate(float("nan")), r"rotate: degrees must be .* got nan"),
        (lambda: ck.scale(100), r"scale: percent must be a number of at least 0 and below 100, got 100"),
        (lambda: ck.translate("2"), r"translate: pixels must be a number of at least 0, got '2'"),
        (lambda: ck.elastic(-1), r"elastic: strength must be a number of at least 0"),
        (lambda: ck.elastic(1, sigma=0), r"elastic: sigma must be above 0 .* got 0 and 10"),
        (lambda: ck.elastic(1, radius=2.5), r"radius a whole number of at least 0, got 4.0 and 2.5"),
        (lambda: ck.noise(-0.1), r"noise: std must be a number of at least 0"),
        (lambda: ck.brightness(-0.1), r"brightness: amount must be a number of at least 0"),
        (lambda: ck.contrast(1), r"contrast: amount must be a number of at least 0 and below 1, got 1"),
        (lambda: ck.cutout(0), r"cutout: size must be a whole number of at least 1, got 0"),
        (lambda: ck.crop(0), r"crop: size must be a whole number of at least 1, got 0"),
        (lambda: ck.crop(7.5), r"crop: size must be a whole number of at least 1, got 7.5"),
        (lambda: ck.crop((1, 2, 3)), r"crop: size must be one number or \(height, width\), got \(1, 2, 3\)"),
        (lambda: ck.crop(8, pad=-1), r"crop: pad must be a whole number of at least 0"),
        (lambda: ck.crop(8, outside="refelct"), r"unknown outside 'refelct': did you mean 'reflect'\?"),
        (lambda: ck.flip(axis="horizontl"), r"unknown axis 'horizontl': did you mean 'horizontal'\?"),
        (lambda: ck.flip(mode="alternating"), r"unknown mode 'alternating': did you mean 'alternate'\?"),
        (lambda: ck.flip(rate=0.1, mode="alternate"), r"mode='alternate' mirrors half of the images, so rate=0.1"),
        (lambda: ck.crop(8, pad=1, outside="edge", background=1), r"background=1 would never be seen with outside='edge'"),
        (lambda: ck.elastic(1, sigma=float("nan")), r"elastic: sigma must be above 0"),
        (lambda: ck.flip(rate=1.5), r"flip: rate is a fraction from 0 to 1, got 1.5"),
        (lambda: ck.normalize(0.5, 0.0), r"normalize: mean must be finite and std above 0, got 0.5 and 0.0"),
        (lambda: ck.crop(13).out_shape(SHAPE), r"crop: size 13×13 is larger than the image, 12×10 with pad=0; make"),
        (lambda: ck.crop(8, pad=10, outside="reflect").out_shape(SHAPE), r"pad=10 must be less than .* 12×10"),
        (lambda: ck.cutout(11).out_shape(SHAPE), r"cutout: size 11 is larger than the image, 12×10"),
        (lambda: ck.normalize((1, 2), 1).out_shape(SHAPE), r"normalize: mean has shape \(2,\), and images \(12, 10, 3\)"),
        (lambda: ck.chain(ck.crop(8), ck.cutout(9)).out_shape(SHAPE), r"cutout: size 9 is larger than the image, 8×8"),
        (lambda: ck.crop(13)(jax.random.key(0), images()), r"crop: size 13×13 is larger"),
        (lambda: ck.rotate(3)(jax.random.key(0), images()[0]), r"rotate takes images \[B, H, W, C\], got shape"),
        (
            lambda: ck.rotate(3)(jax.random.key(0), jnp.zeros((2, *SHAPE), jnp.uint8)),
            r"rotate takes floating images from 0 to 1, got uint8: divide by 255",
        ),
        (lambda: ck.noise(1).test(jnp.zeros((2, *SHAPE), jnp.uint8)), r"noise takes floating images"),
        (
            lambda: ck.flip(mode="alternate")(jax.random.key(0), images()),
            r"flip\(mode='alternate'\) needs to know the examples and the epoch: call augment\(key, images, index=",
        ),
        (lambda: ck.rebuild({"name": "rotat", "degrees": 1}), r"unknown augmentation 'rotat': did you mean 'rotate'\?"),
    ],
)  # fmt: skip
def test_errors_say_what_was_wrong(call, text):
    with pytest.raises(ValueError, match=text):
        call()


def test_a_chain_of_something_else_says_which_part():
    with pytest.raises(TypeError, match=r"chain: part 1 is .*, not an Augment; call it, e.g. flip\(\)"):
        ck.chain(ck.rotate(3), ck.flip)


@pytest.mark.parametrize("name", MAKERS)
def test_conventions_of_arguments(name):
    """What has a default is keyword-only, under a name that means the same everywhere."""
    for parameter in inspect.signature(MAKERS[name]).parameters.values():
        required = parameter.default is parameter.empty
        assert required == (parameter.kind is parameter.POSITIONAL_OR_KEYWORD)
        if not required:
            assert parameter.default == OPTIONS[parameter.name]
            assert type(parameter.default) is type(OPTIONS[parameter.name])
    assert list(ALL[name].config) == list(inspect.signature(MAKERS[name]).parameters)
    assert ALL[name].name == name


def test_conventions_of_the_call():
    called = list(inspect.signature(ck.Augment.__call__).parameters.values())
    assert [p.name for p in called] == ["self", "key", "images", "index", "epoch"]
    assert {p.kind for p in called[3:]} == {inspect.Parameter.KEYWORD_ONLY}
    assert set(ck.__all__) - {"Augment", "affine", "chain", "rebuild", "stages", "view"} == set(MAKERS)


def test_titles_show_what_was_set():
    assert str(ALL["crop"]) == "crop((8, 6), pad=2, outside=reflect)"
    assert str(ALL["translate"]) == "translate(1.5, background=1)"
    assert str(ck.affine(percent=5, pixels=2, background=0.5)) == (
        "scale(5, background=0.5) → translate(2, background=0.5)"
    )


def test_every_worker_draws_for_itself():
    mesh = jax.make_mesh((4,), ("w",), axis_types=(jax.sharding.AxisType.Auto,))
    each_worker = jax.sharding.PartitionSpec("w")
    augment, x = ck.chain(ck.flip(), ck.scale(20), ck.noise(0.1)), images(4, (5, 6, 1))
    keys = jax.random.split(jax.random.key(0), 4)

    def one(keys, x):
        return jax.lax.fori_loop(0, 2, lambda i, _: augment(keys[0], x), x)

    mapped = jax.shard_map(one, mesh=mesh, in_specs=each_worker, out_specs=each_worker)
    alone = [augment(keys[i], x[i : i + 1]) for i in range(4)]
    np.testing.assert_allclose(jax.jit(mapped)(keys, x), jnp.concatenate(alone), atol=1e-5)
