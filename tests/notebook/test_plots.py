"""Curves: what is drawn is what was recorded."""

import io

import numpy as np
import pytest
from matplotlib.colors import to_hex
from PIL import Image

from cnnkit.notebook import plots, style
from cnnkit.record.rows import Record


def record(accuracies, seconds=2.0, folder=None, **more):
    made = Record(folder)
    for epoch, accuracy in enumerate(accuracies, 1):
        row = {"kind": "epoch", "epoch": epoch, "examples": 100 * epoch, "train_total": seconds * epoch}
        row |= {"train_accuracy": accuracy + 0.05, "train_loss": 1 - accuracy}
        if accuracy is not None and more.get("tested", True):
            row |= {"test_accuracy": accuracy, "test_loss": 1.1 - accuracy}
        made.append(row)
    return made


def lines(figure, ax=0):
    return {line.get_label(): line for line in figure.axes[ax].lines}


def test_one_run_shows_training_and_test_in_percent_against_epochs():
    drawn = lines(plots.curves(record([0.5, 0.75, 0.875])))
    assert list(drawn) == ["training", "test"]
    np.testing.assert_allclose(drawn["test"].get_xdata(), [1, 2, 3])
    np.testing.assert_allclose(drawn["test"].get_ydata(), [50, 75, 87.5])
    np.testing.assert_allclose(drawn["training"].get_ydata(), [55, 80, 92.5])
    assert drawn["training"].get_linestyle() != drawn["test"].get_linestyle()


@pytest.mark.parametrize(
    ("x", "values", "name"),
    [("examples", [100, 200], "training examples"), ("seconds", [2, 4], "seconds of training")],
)
def test_the_same_against_examples_or_seconds_of_training(x, values, name):
    figure = plots.curves(record([0.5, 0.75]), x=x)
    np.testing.assert_allclose(lines(figure)["test"].get_xdata(), values)
    assert figure.axes[0].get_xlabel() == name
    assert figure.axes[0].get_ylabel() == "accuracy (%)"


def test_seeds_become_their_mean_and_a_band_of_one_deviation():
    seeds = [record([0.5, 0.7], seconds=1.0), record([0.6, 0.9], seconds=3.0)]
    figure = plots.curves({"ours": seeds, "theirs": record([0.4, 0.4])}, x="seconds")
    drawn = lines(figure)
    assert list(drawn) == ["ours (n = 2)", "theirs"]
    np.testing.assert_allclose(drawn["ours (n = 2)"].get_xdata(), [2, 4])
    np.testing.assert_allclose(drawn["ours (n = 2)"].get_ydata(), [55, 80])
    (band,) = figure.axes[0].collections
    ys = band.get_paths()[0].vertices[:, 1]
    np.testing.assert_allclose(
        [ys.min(), ys.max()], [55 - 100 * np.std([0.5, 0.6], ddof=1), 80 + 100 * np.std([0.7, 0.9], ddof=1)]
    )
    assert to_hex(drawn["theirs"].get_color()).upper() == style.PALETTE["vermilion"]


def test_a_band_covers_only_epochs_that_all_seeds_have_reached():
    drawn = lines(plots.curves({"a": [record([0.5, 0.7, 0.9]), record([0.5, 0.7])]}, y="error"))
    np.testing.assert_allclose(drawn["test (n = 2)"].get_ydata(), [50, 30])


def test_several_measures_stand_side_by_side_and_any_column_can_be_drawn():
    figure = plots.curves(record([0.5, 0.75]), y=("loss", "examples"))
    np.testing.assert_allclose(lines(figure)["training"].get_ydata(), [0.5, 0.25])
    np.testing.assert_allclose(figure.axes[1].lines[0].get_ydata(), [100, 200])
    assert [ax.get_ylabel() for ax in figure.axes] == ["loss", "examples"]


def test_folders_are_labelled_by_their_names(tmp_path):
    record([0.5, 0.6], folder=tmp_path / "one")
    record([0.7, 0.8], folder=tmp_path / "two")
    drawn = lines(plots.curves([tmp_path / "one", str(tmp_path / "two")]))
    assert list(drawn) == ["one", "two"]
    np.testing.assert_allclose(drawn["two"].get_ydata(), [70, 80])


def test_epochs_without_evaluation_are_passed_over():
    some = record([0.5, 0.75], tested=False)
    some.append({"kind": "epoch", "epoch": 3, "examples": 300, "train_total": 6.0, "test_accuracy": 0.8})
    assert lines(plots.curves(some))["test"].get_xdata().tolist() == [3]


def test_errors_name_what_is_wrong(tmp_path):
    some = record([0.5])
    with pytest.raises(ValueError, match="unknown x 'epoch': did you mean 'epochs'"):
        plots.curves(some, x="epoch")
    with pytest.raises(ValueError, match="unknown y 'acuracy': did you mean 'accuracy'"):
        plots.curves(some, y="acuracy")
    with pytest.raises(ValueError, match="unknown part 'tset': did you mean 'test'"):
        plots.curves(some, parts=["tset"])
    with pytest.raises(ValueError, match="no epoch has been recorded yet; train first"):
        plots.curves(Record())
    with pytest.raises(FileNotFoundError, match=r"holds no record\.jsonl; give the folder of a run"):
        plots.curves(tmp_path)
    with pytest.raises(TypeError, match="neither a run nor a run's folder"):
        plots.curves([3])
    with pytest.raises(ValueError, match="no rounds have been recorded; runs of several workers"):
        plots.rounds(some)


def test_rounds_show_each_workers_steps_and_busy_share():
    some = Record()
    for i in range(3):
        row = {"kind": "rounds", "round": i, "epochs": 0.5 * i, "fetch": [1 + i, 4], "busy": [0.5, None]}
        some.append(row)
    figure = plots.rounds(some)
    np.testing.assert_allclose(lines(figure)["worker 0"].get_ydata(), [1, 2, 3])
    np.testing.assert_allclose(lines(figure)["worker 1"].get_ydata(), [4, 4, 4])
    np.testing.assert_allclose(lines(figure, 1)["worker 0"].get_ydata(), [50, 50, 50])
    assert np.isnan(lines(figure, 1)["worker 1"].get_ydata()).all()


def test_a_figure_shows_itself_and_opens_nothing_in_pyplot():
    import matplotlib._pylab_helpers as pylab

    data, size = plots.curves(record([0.5, 0.75]))._repr_mimebundle_()
    assert data["image/png"].startswith(b"\x89PNG")
    assert size["image/png"] == {"width": 480, "height": 307}
    assert pylab.Gcf.get_num_fig_managers() == 0


@pytest.mark.parametrize("ending", ["svg", "pdf", "png"])
def test_saving_gives_paper_size_and_the_same_bytes_twice(tmp_path, ending):
    figure = plots.curves(record([0.5, 0.75]))
    first = plots.save(figure, tmp_path / f"new/one.{ending}", width="column").read_bytes()
    assert first == plots.save(figure, tmp_path / f"two.{ending}", width=3.35).read_bytes()
    assert tuple(figure.get_size_inches()) == (5.0, 3.2)
    if ending == "png":
        assert _size(first)[0] == round(3.35 * 300)
    if ending == "svg":
        assert b'width="241.2pt"' in first


@pytest.mark.parametrize("width", ["column", "page"])
def test_three_plots_side_by_side_are_whole_at_paper_size_and_as_before_afterwards(tmp_path, width):
    some = record([0.5, 0.75])
    for i in range(4):
        row = {"kind": "rounds", "round": i, "epochs": 0.5 * i, "examples": 50 * i, "seconds": 1.0}
        some.append(row | {"fetch": [16, 8, 4, 2], "busy": [1.0] * 4})
    figure = plots.training(some)
    before = figure.png()
    path = plots.save(figure, tmp_path / "a.png", width)
    pixels = np.asarray(Image.open(path).convert("L"))
    edges = [pixels[:2], pixels[-2:], pixels[:, :2], pixels[:, -2:]]
    assert [int(edge.min()) for edge in edges] == [255] * 4  # text that is cut off leaves ink at an edge
    assert figure.png() == before


def test_saving_a_figure_of_pyplots_opens_no_other(tmp_path):
    from matplotlib import pyplot

    figure, _ = pyplot.subplots()
    assert plots.save(figure, tmp_path / "a.svg").stat().st_size > 1000
    assert pyplot.get_fignums() == [figure.number]
    pyplot.close(figure)


def test_saving_under_an_unknown_ending_or_width_says_what_is_known(tmp_path):
    figure = plots.curves(record([0.5]))
    with pytest.raises(
        ValueError, match=r"unknown ending of a figure's file '.jpg': .*Known: .pdf, .png, .svg"
    ):
        plots.save(figure, tmp_path / "a.jpg")
    with pytest.raises(ValueError, match="unknown width 'pages': did you mean 'page'"):
        plots.save(figure, tmp_path / "a.png", width="pages")
    with pytest.raises(ValueError, match="width is 0; it must be 'column', 'page' or a number of inches"):
        plots.save(figure, tmp_path / "a.png", width=0)


def test_a_small_palette_saves_bytes_and_keeps_the_colours():
    figure = plots.curves(record([0.5, 0.75, 0.9]))
    full, small = figure.png(), figure.png(colors=64)
    assert len(small) < 0.5 * len(full)
    assert _size(small) == _size(full) == (720, 460)


def test_a_palette_keeps_the_colours_of_thin_lines():
    figure, (ax,) = style.figure(3, 2)
    for i, color in enumerate(style.COLORS):
        ax.plot([0, 1], [i, i + 0.3], color=color, linestyle=":", linewidth=2)
    ax.imshow(np.linspace(0, 1, 400).reshape(20, 20), cmap="viridis", extent=(0, 1, 8, 9), aspect="auto")
    ax.set_ylim(-1, 9)
    pixels = np.asarray(Image.open(io.BytesIO(figure.png(colors=64))).convert("RGB")).reshape(-1, 3)
    shown = {to_hex(color / 255).upper() for color in np.unique(pixels, axis=0)}
    assert shown >= {color for color in style.COLORS if color != "#000000"} | {"#FFFFFF"}


def test_one_epoch_stands_at_its_number_and_its_spread_is_seen_within_what_there_can_be():
    figure = plots.curves({"a": [record([0.0], tested=True), record([0.9])], "b": record([0.98])})
    (ax,) = figure.axes
    figure.canvas.draw()
    assert [x for x in ax.get_xticks() if 0.5 < x < 1.5] == [1]
    (bar,) = ax.containers
    ys = bar.lines[2][0].get_segments()[0][:, 1]
    np.testing.assert_allclose(ys, 45 + np.array([-1, 1]) * 100 * np.std([0.0, 0.9], ddof=1))
    assert ax.get_ylim() == (-2, 102)


def test_a_logarithmic_axis_has_plain_numbers_also_within_a_decade():
    figure = plots.curves(record([0.72, 0.9, 0.98]), y=("accuracy", "loss"), parts=["test"], log=True)
    figure.canvas.draw()
    for ax in figure.axes:
        low, high = ax.get_ylim()
        shown = [t.get_text() for t in ax.get_yticklabels(which="both") if low <= t.get_position()[1] <= high]
        assert len([float(text) for text in shown if text]) >= 2


def _size(png):
    return Image.open(io.BytesIO(png)).size
