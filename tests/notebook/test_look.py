"""Looking at runs and networks: what the figures show is what the arrays say."""

import jax
import numpy as np
import pytest

import cnnkit as ck
from cnnkit.notebook import diagram, inside, look, range_test
from cnnkit.train.loop import lay_out
from cnnkit.train.step import Source, mini_batch

DATA = ck.load("digits").take(train=200, test=60)
NET = ck.serial(
    ck.conv(4, 3),
    ck.relu(),
    ck.branch(ck.conv(3, 3, padding="same"), ck.serial(ck.conv(2, 1), ck.relu())),
    ck.max_pool(2),
    ck.dense(10),
)


@pytest.fixture(scope="module")
def run():
    """Trained for two epochs, far from perfect."""
    made = ck.Run(NET, DATA, batch=50, epochs=2, augment=ck.augment.rotate(20))
    return made.fit(panel=False)


@pytest.fixture(scope="module")
def linear():
    """One dense layer, trained for one epoch."""
    return ck.Run(ck.dense(10), DATA, batch=50, epochs=1).fit(panel=False)


def images(figure):
    return [np.asarray(ax.images[0].get_array()) for ax in figure.axes if ax.images]


def titles(figure):
    return [ax.get_title() for ax in figure.axes if ax.images]


def test_the_confusion_counts_every_example_where_it_belongs(run):
    said, labels = run.predict("test").argmax(-1), DATA.test.labels
    by_hand = np.zeros((10, 10), int)
    for truth, guess in zip(labels, said):
        by_hand[truth, guess] += 1
    np.testing.assert_array_equal(look.confusion_counts(run), by_hand)
    figure = look.confusion(run)
    assert figure.axes[0].get_title() == f"test: {np.trace(by_hand)} of 60 right"
    np.testing.assert_allclose(images(figure)[0], by_hand / by_hand.sum(1, keepdims=True))
    written = [t.get_text() for t in figure.axes[0].texts]
    assert written == [str(count) for count in by_hand.ravel() if count]


def test_class_accuracy_has_a_bar_a_class_and_a_line_for_all(run):
    counts = look.confusion_counts(run, "train")
    ax = look.class_accuracy(run, "train").axes[0]
    np.testing.assert_allclose(
        [bar.get_height() for bar in ax.patches], 100 * np.diag(counts) / counts.sum(1)
    )
    whole = 100 * run.evaluate("train")["accuracy"]
    np.testing.assert_allclose(ax.lines[0].get_ydata(), [whole, whole])
    assert f"all classes {whole:.2f} %" in ax.get_title()


def test_the_worst_come_first(run):
    chances, labels = run.predict("test"), DATA.test.labels
    order = np.argsort(chances[np.arange(60), labels])
    figure = look.worst(run, count=12)
    assert len(images(figure)) == 12
    np.testing.assert_allclose(images(figure)[0], DATA.test.images[order[0], :, :, 0] / 255)
    i = order[0]
    assert titles(figure)[0] == f"{labels[i]} → {chances[i].argmax()}\n{100 * chances[i].max():.0f} %"


def test_the_least_sure_come_first(run):
    two = np.sort(run.predict("train"), -1)[:, -2:]
    i = np.argmin(two[:, 1] - two[:, 0])
    shown = images(look.unsure(run, "train", count=3))
    np.testing.assert_allclose(shown[0], DATA.train.images[i, :, :, 0] / 255)


def test_a_batch_is_shown_as_the_run_is_given_it(run):
    figure = look.batch(run, number=1, epoch=3, count=4)
    drawn = mini_batch(Source(*DATA.train), lay_out(run, 3), 1)
    shown = images(figure)
    assert len(shown) == 8
    np.testing.assert_allclose(shown[0], DATA.train.images[drawn.index[0], :, :, 0] / 255)
    given = run.task.augmented(drawn, jax.random.split(drawn.key)[0])
    np.testing.assert_allclose(
        shown[5], np.clip(given[1, :, :, 0] * run.task.std + run.task.mean, 0, 1), atol=1e-5
    )
    assert np.abs(shown[4] - shown[0]).max() > 0.1
    with pytest.raises(ValueError, match="number is 4; an epoch of this run has mini-batches 0 to 3"):
        look.batch(run, number=4)


def test_saliency_is_the_slope_of_the_likeliest_class(linear):
    maps, said = look.saliency_maps(linear, DATA.test.images[:5])
    np.testing.assert_array_equal(said, linear.predict(DATA.test.images[:5]).argmax(-1))
    for each, label in zip(maps, said):
        slope = np.abs(np.asarray(linear.params["w"])[:, label]) / linear.task.std
        np.testing.assert_allclose(each.ravel(), slope, rtol=1e-5)
    figure = look.saliency(linear, [3, 0])
    np.testing.assert_allclose(images(figure)[3], maps[0], rtol=1e-6)
    with pytest.raises(ValueError, match="digits has test images 0 to 59, not 60"):
        look.saliency(linear, [60])


def test_filters_are_the_weights(run):
    assert next(iter(inside.convolutions(run))) == "0 conv 4 3×3"
    figure = inside.filters(run)
    whole = images(figure)[0]
    assert whole.shape == (3, 15)
    np.testing.assert_allclose(whole[:, 4:7], run.params[0]["w"][:, :, 0, 1], rtol=1e-6)
    second = images(inside.filters(run, 1))[0]
    np.testing.assert_allclose(second[4:7, 8:11], run.params[2][0]["w"][:, :, 2, 1], rtol=1e-6)
    assert figure.axes[0].get_title() == "0 conv 4 3×3: 4 kernels of 3×3 over 1 channel"
    with pytest.raises(
        ValueError, match="no convolution 9 in this network; it has 0: 0 conv 4 3×3; 1: 2 branch"
    ):
        inside.filters(run, 9)


def test_activations_end_in_what_the_run_predicts(run):
    made = inside.activations(run, DATA.test.images[7])
    logits = made[-1][1]
    chances = np.exp(logits - logits.max()) / np.exp(logits - logits.max()).sum()
    np.testing.assert_allclose(chances, run.predict(DATA.test.images[7:8])[0], rtol=1e-4)
    shapes = [y.shape for _, y in made]
    assert shapes == [(6, 6, 4), (6, 6, 4), (6, 6, 3), (6, 6, 2), (6, 6, 2), (6, 6, 5), (3, 3, 5), (10,)]
    np.testing.assert_allclose(made[5][1], np.concatenate([made[2][1], made[4][1]], -1))


def test_feature_maps_show_a_layers_channels(run):
    maps = inside.activations(run, DATA.test.images[2])[1][1]
    figure = inside.feature_maps(run, 2, "1 relu")
    whole = images(figure)[0]
    np.testing.assert_allclose(whole[:6, 7:13], maps[:, :, 1])
    assert figure.axes[0].get_title() == "1 relu: 6×6×4"
    with pytest.raises(ValueError, match="no layer with maps '1 rleu' in this network"):
        inside.feature_maps(run, 2, "1 rleu")


def test_a_range_test_finds_rates_and_leaves_the_run_as_it_was(linear):
    before = [np.asarray(leaf).copy() for leaf in jax.tree.leaves(linear.model)]
    standing = linear.epoch, linear.position, len(linear.record), dict(linear.clocks.seconds)
    found = range_test.lr_range(linear, 1e-4, 10.0, steps=40)
    for old, new in zip(before, jax.tree.leaves(linear.model), strict=True):
        np.testing.assert_array_equal(old, new)
    assert standing == (linear.epoch, linear.position, len(linear.record), dict(linear.clocks.seconds))
    np.testing.assert_allclose(found.lrs[[0, -1]], [1e-4, 10], rtol=1e-6)
    np.testing.assert_allclose(found.lrs[1:] / found.lrs[:-1], 1e5 ** (1 / 39), rtol=1e-4)
    drawn = mini_batch(Source(*DATA.train), lay_out(linear, 0), 0)
    _, _, sums = linear.task.gradient(linear.model, drawn)
    assert found.losses[0] == pytest.approx(float(sums.loss / sums.examples), rel=1e-4)
    assert found._repr_mimebundle_()[0]["image/png"].startswith(b"\x89PNG")


def test_the_steepest_and_the_lowest_of_a_known_curve():
    lrs = np.geomspace(1e-4, 1.0, 81)
    place = np.log10(lrs)
    losses = np.where(place < -0.9, 2 - 1 / (1 + np.exp(-8 * (place + 2))), 50.0)
    found = range_test.LrRange(lrs, losses, losses)
    assert found.steepest == pytest.approx(1e-2, rel=0.1)
    assert found.largest == pytest.approx(10**-0.95, rel=0.1)
    np.testing.assert_allclose(range_test.smooth(np.array([1.0, 2.0])), [1.0, (0.09 + 0.2) / 0.19])


def test_a_range_that_is_none_is_refused(run):
    with pytest.raises(ValueError, match=r"low is 1 and high is 0.1; .* needs 0 < low < high"):
        range_test.lr_range(run, 1, 0.1)
    with pytest.raises(ValueError, match="steps is 3; at least 10 are needed"):
        range_test.lr_range(run, steps=3)


def test_a_tour_draws_branches_and_merges(run):
    nodes, edges = diagram.flow(NET, (8, 8, 1))
    assert [node.text.split("\n")[0] for node in nodes] == [
        "input",
        "conv 4 3×3",
        "relu",
        NET.parts[2].parts[0].name,
        "conv 2 1×1",
        "relu",
        "concatenate",
        "max_pool 2×2",
        "dense 10",
    ]
    assert edges == [(0, 1), (1, 2), (2, 3), (2, 4), (4, 5), (3, 6), (5, 6), (6, 7), (7, 8)]
    assert nodes[6].text == "concatenate\n6×6×5"
    shown = diagram.tour(run)
    data, _ = shown._repr_mimebundle_()
    assert set(data) == {"text/plain", "text/html", "image/png"}
    assert repr(shown) == str(ck.summary(NET, (8, 8, 1)))
    assert "diagram of the network" in data["text/html"]
    assert "<th" in data["text/html"]


def test_a_tour_needs_a_shape_and_a_figure_has_its_limits():
    with pytest.raises(ValueError, match=r"needs shape=\(H, W, C\), that of one example: data.shape"):
        diagram.tour(NET)
    deep = ck.serial(*(ck.relu() for _ in range(401)))
    with pytest.raises(ValueError, match="the network has 402 layers; a diagram shows at most 400"):
        diagram.tour(deep, (8, 8, 1)).figure()
