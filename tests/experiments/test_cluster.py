"""The cluster experiment: its links, its model and its rows, where rounds take what the cost model says."""

import numpy as np
import pytest

from cnnkit.experiments import cluster, reproduce, saved
from cnnkit.experiments.scaling import fitted, rate_for
from cnnkit.lab import units
from cnnkit.parallel.cost import Link, RoundCost
from cnnkit.parallel.fetch import RoundView, as_policy
from cnnkit.parallel.traffic import sent_bytes

STEP, VALUES, BATCH, OVERHEAD = 0.03, 1_000_000, 8, 0.002


def found_by_model(case, nodes, rate):
    """What a case finds on a link of that rate, with an overhead in each round."""
    found = {"label": case["label"], "fetch": [1], "busy": [1.0, 0.9], "exchange_seconds": 0.0, "bytes": 0}
    if nodes == 1:
        return found | {"images_per_s": [BATCH / STEP], "step_seconds": []}
    traffic = sent_bytes(VALUES, nodes)
    exchange = Link(units.bits(rate) if rate else 1e12).seconds(traffic)
    view = RoundView(nodes, speeds=(1 / STEP,) * nodes, exchange_seconds=exchange, delay=case.get("delay", 0))
    k = as_policy(case["fetch"])(view).tolist()
    cost = RoundCost(STEP, k, exchange, case.get("delay", 0), overhead=OVERHEAD)
    rate_found = {"images_per_s": [cost.throughput(BATCH)] * 2, "fetch": k, "exchange_seconds": exchange}
    return found | rate_found | {"step_seconds": [STEP] * nodes, "bytes": traffic.sent[0]}


def by_model(cases, nodes, rate, folder):
    if "epochs" not in cases[0]:
        return [found_by_model(case, nodes, rate) for case in cases]
    seconds = {"sync": 10.0, "every(8)": 2.0, "warm_start": 2.5, "hide": 1.0}
    curves = {
        label: [{"seconds": s * (i + 1), "accuracy": a} for i, a in enumerate((0.9, 0.94, 0.96))]
        for label, s in seconds.items()
    }
    return [{"label": c["label"], "curve": curves[c["label"].split(" ", 2)[2]]} for c in cases]


@pytest.fixture(scope="module")
def outcome(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cluster, "on_nodes", by_model)
        links = {"rates": ["1gbit", "100mbit", "sync47"], "unshaped": True}
        return reproduce("cluster", "small", tmp_path_factory.mktemp("cluster"), **links)


def value(outcome, case, figure):
    return next(r["value"] for r in outcome.rows if (r["case"], r["figure"]) == (case, figure))


def test_the_link_is_set_so_that_synchronous_training_has_its_part_of_a_node(outcome):
    assert value(outcome, "4 sync47 sync", "of_one_node") == pytest.approx(0.47, rel=1e-3)
    # 8 steps of 30 ms hide an exchange of 223 ms.
    assert value(outcome, "4 sync47 hide", "of_one_node") == pytest.approx(4 * 0.24 / 0.242, rel=1e-3)
    assert value(outcome, "4 sync47 hide", "over_sync") == pytest.approx(4 * 0.24 / 0.242 / 0.47, rel=2e-3)
    # Exchanges of 12 and 9.6 MB at 100 Mbit/s.
    assert value(outcome, "4 100mbit hide", "over_sync") > 12.34
    assert value(outcome, "4 unshaped hide", "of_one_node") == pytest.approx(4 * 0.03 / 0.032, rel=1e-2)
    assert value(outcome, "4 100mbit hide", "busy_min") == 0.9
    assert value(outcome, "4 1gbit sync", "of_no_link") == pytest.approx(0.03025 / (0.032 + 0.0502), rel=1e-2)


def test_a_model_of_one_and_two_nodes_foretells_four(outcome):
    foretold = {r["case"]: r["value"] for r in outcome.rows if r["figure"] == "predicted"}
    four = [v for case, v in foretold.items() if case.startswith("4 ")]
    assert len(four) == 12
    np.testing.assert_allclose(four, 1, rtol=5e-3)
    # The overhead is none of what the measured exchange of two nodes explains.
    assert foretold["2 100mbit sync"] == pytest.approx((0.03 + 0.3346 + 0.002) / (0.03 + 0.3346), rel=1e-3)


def test_curves_go_on_to_a_thousand_nodes_and_are_marked(outcome):
    far = {r["case"]: r for r in outcome.rows if r["figure"] == "predicted_of_ideal"}
    assert len(far) == 3 * 4 * 4
    assert {(r["n"], r["predicted"], r["curve"]["nodes"][-1]) for r in far.values()} == {(0, True, 1000)}
    assert far["1000 sync47 hide psum"]["value"] > 0.95
    assert far["1000 sync47 sync server"]["value"] < 0.001
    assert far["1000 sync47 hide psum"]["curve"]["images_per_s"][0] == pytest.approx(BATCH / 0.032, rel=0.07)


def test_time_to_the_same_accuracy_lies_between_epochs(outcome):
    # 95 % is half-way between the second epoch and the third.
    assert value(outcome, "4 sync47 sync", "seconds_to_target") == pytest.approx(25.0)
    assert value(outcome, "4 sync47 hide", "to_target_over_sync") == pytest.approx(10.0)
    assert value(outcome, "4 sync47 hide", "accuracy") == pytest.approx(96.0)
    assert cluster.reached([{"seconds": 1.0, "accuracy": 0.9}], 0.95) is None


def test_the_table_has_the_works_two_figures_and_says_that_they_do_not_go_together(outcome):
    text = str(outcome)
    line = next(x for x in text.splitlines() if x.startswith("4 100mbit hide") and "over_sync" in x)
    assert line.split()[4] == "12.34"
    assert "0.47 · 12.34 = 5.8 nodes' worth" in " ".join(text.split())
    assert "predicted_of_ideal" not in text
    assert [ax.get_visible() for ax in outcome.figure.axes] == [True] * 4
    bars = outcome.figure.axes[0].patches
    assert bars[-1].get_height() == value(outcome, "4 sync47 hide", "of_one_node")


def test_what_was_saved_comes_back_as_it_was(outcome):
    again = saved.read("cluster", outcome.folder)
    assert again.rows == outcome.rows
    assert str(again) == str(outcome)
    assert [len(ax.get_lines()) for ax in again.figure.axes] == [
        len(ax.get_lines()) for ax in outcome.figure.axes
    ]


def test_what_cannot_be_is_said(tmp_path, monkeypatch):
    with pytest.raises(ValueError, match=r"cluster needs 2 among its nodes.*nodes is \[1, 4\]"):
        reproduce("cluster", "smoke", tmp_path, nodes=[1, 4])
    with pytest.raises(ValueError, match=r"4 nodes are no faster than 0\.5 of one, whatever their link"):
        rate_for(0.5, 4, step_seconds=0.001, values=10, overhead=0.1)
    with pytest.raises(
        ValueError, match=r"train_rate='sync47', which is not among its rates \['1gbit'\]; name one"
    ):
        reproduce("cluster", "small", tmp_path, rates=["1gbit"])
    monkeypatch.setattr(cluster, "on_nodes", by_model)
    with pytest.raises(ValueError, match="sync47 needs another rate beside it"):
        reproduce("cluster", "small", tmp_path, rates=["sync47"])
    with pytest.raises(ValueError, match=r"unknown policy 'hid'.*hide"):
        reproduce("cluster", "small", tmp_path, policies=["sync", "hid"])


def test_on_two_gpus_two_nodes_do_real_work(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr("cnnkit.lab.environment.gpus", lambda: ["0", "1"])
    monkeypatch.setattr(
        cluster,
        "on_nodes",
        lambda cases, *where: asked.append((cases, *where[:2])) or by_model(cases, *where),
    )
    outcome = reproduce("cluster", "full", tmp_path, rates=["1gbit"])
    assert [(nodes, rate) for _, nodes, rate in asked] == [(1, None), (2, None), (2, 1e9)]
    assert not any("wait" in case or "speeds" in case for cases, *_ in asked for case in cases)
    assert {r["work"] for r in outcome.rows if r["figure"] == "images_per_s"} == {"real"}
    assert value(outcome, "2 1gbit hide", "over_sync") == pytest.approx(
        2 * 0.06 / 0.062 / (2 * 0.03 / (0.032 + 0.03346)), rel=1e-3
    )


def test_the_fit_finds_link_and_overhead():
    case = {"label": "x", "fetch": 4}
    alone, two = found_by_model(case, 1, None), {"every(4)": found_by_model(case, 2, "100mbit")}
    model = fitted(alone, two, {"every(4)": {"fetch": 4}}, BATCH)["every(4)"]
    assert model.values == VALUES
    assert model.link.rate == pytest.approx(1e8 * 1448 / 1514)
    assert model.overhead == pytest.approx(OVERHEAD)
    assert model.images_per_s(1) == pytest.approx(BATCH / STEP)


def test_a_job_of_several_machines_is_timed_over_its_own_links(tmp_path, monkeypatch):
    import jax

    monkeypatch.setattr(
        cluster, "on_nodes", lambda cases, nodes, rate, folder: by_model(cases, nodes, "1gbit", folder)
    )
    monkeypatch.setattr(jax.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(jax, "process_count", lambda: 4)
    outcome = reproduce("cluster", "small", tmp_path)
    assert [r["case"] for r in outcome.rows if r["figure"] == "over_sync"] == [
        f"4 link {p}" for p in ("sync", "every(8)", "every(8) delay", "hide")
    ]
    assert value(outcome, "4 link hide", "of_one_node") == pytest.approx(4 * 0.06 / 0.062, rel=1e-3)


def test_it_may_be_trained_on_other_data_than_what_is_timed_at_other_rates(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(cluster, "on_nodes", lambda cases, *job: asked.extend(cases) or by_model(cases, *job))
    settings = {"rates": ["100mbit"], "train_rate": "100mbit", "train_data": "cifar10", "train_lr": 2.5}
    reproduce("cluster", "small", tmp_path, **settings)
    trained = {case["label"]: (case["data"], case["lr"]) for case in asked if "epochs" in case}
    assert trained == {
        "4 100mbit sync": ("cifar10", 0.05),
        "4 100mbit warm_start": ("cifar10", 0.025),
        "4 100mbit hide": ("cifar10", 0.025),
    }
    assert {case["data"] for case in asked if "epochs" not in case} == {"digits"}
