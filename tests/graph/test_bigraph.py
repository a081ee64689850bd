import itertools

import pytest

from cnnkit.graph import Blob, Graph, GraphError, evaluate, resource


def diamond() -> Graph:
    g = Graph("diamond", inputs=[Blob("x", (2, 3), "float32")])
    g.add("left", lambda x: x + 1, "x", "l")
    g.add("right", lambda x: x * 10, "x", "r", on="compute:1")
    g.add("both", lambda l, r: (l + r, l - r), ["l", "r"], ["sum", "difference"])
    return g


def test_the_neighbours_of_operations_and_blobs():
    g = diamond()
    assert g.before("both") == ("left", "right")
    assert g.after("left") == ("both",)
    assert g.writer("r") == "right"
    assert g.writer("x") is None
    assert g.readers("x") == ("left", "right")
    assert g.outputs == ("sum", "difference")
    assert g.order() == ["left", "right", "both"]
    assert len(g) == 3
    assert repr(g) == "<Graph 'diamond': 3 operations, 5 blobs, on compute:1, cpu>"


def test_order_does_not_depend_on_the_order_of_adding():
    g = Graph(inputs=["x"])
    g.add("last", lambda m: m, "middle")
    g.add("middle", lambda f: f, "first")
    g.add("first", lambda x: x, "x")
    assert g.order() == ["first", "middle", "last"]


def test_evaluate_calls_the_operations_in_turn():
    assert evaluate(diamond(), {"x": 2}) == {"sum": 23, "difference": -17}


def test_constants_need_no_feeding():
    g = Graph(inputs=["x"])
    g.input("two", 2)
    g.add("double", lambda x, two: x * two, ["x", "two"], "y")
    assert g.inputs == ("x",)
    assert evaluate(g, {"x": 21}) == {"y": 42}


def test_size_of_a_blob():
    assert Blob("x", (2, 3), "float32").nbytes == 24
    assert Blob("k", (5,), "bfloat16").nbytes == 10
    assert Blob("x").nbytes == 0


def test_resources():
    assert resource("copy_in:2") == ("copy_in", 2)
    assert resource(resource("cpu")) == ("cpu", 0)
    with pytest.raises(
        ValueError, match=r"unknown resource 'gpu'.*Known: compute, copy_in, copy_out, cpu, network"
    ):
        resource("gpu")
    with pytest.raises(
        ValueError, match=r"'compute:one': after the colon stands a whole number, e.g. compute:1"
    ):
        resource("compute:one")


def test_a_cycle_is_named_with_its_blobs():
    g = Graph("loop", inputs=["x"])
    g.add("a", None, ["x", "c out"], "a out")
    g.add("b", None, "a out", "b out")
    g.add("c", None, "b out", "c out")
    g.add("after", None, "c out", "end")
    with pytest.raises(GraphError) as error:
        g.order()
    text = str(error.value)
    assert text.startswith("loop: operations wait for each other in a cycle, ")
    path = text.split("cycle, ")[1].split(" (through")[0].split(" → ")
    assert path[0] == path[-1]
    assert set(path) == {"'a'", "'b'", "'c'"}
    for x, y in itertools.pairwise(path):
        assert (x, y) in {("'a'", "'b'"), ("'b'", "'c'"), ("'c'", "'a'")}
    assert "blob 'a out'" in text
    assert "after" not in text


def test_an_operation_that_reads_what_it_writes_is_a_cycle():
    g = Graph("self")
    g.add("a", None, "y", "y")
    with pytest.raises(GraphError, match="cycle, 'a' → 'a' \\(through blob 'y'\\)"):
        g.order()


def test_a_missing_input_is_named_and_the_nearest_suggested():
    g = Graph("typo", inputs=["weights"])
    g.add("step", None, "weigths", "loss")
    with pytest.raises(
        GraphError,
        match="blob 'weigths', read by operation 'step', is missing \\(did you mean 'weights'\\?\\)",
    ):
        g.order()


def test_a_missing_output_is_named():
    g = Graph("typo", inputs=["x"], outputs=["z"])
    g.add("step", None, "x", "loss")
    with pytest.raises(GraphError, match="blob 'z', read by the list of outputs, is missing"):
        g.order()


def test_a_blob_written_twice_names_both_operations():
    g = Graph("twice", inputs=["x"])
    g.add("one", None, "x", "y")
    with pytest.raises(GraphError, match="blob 'y' would be written twice, by operation 'one' and by 'two'"):
        g.add("two", None, "x", "y")
    with pytest.raises(
        GraphError, match="blob 'z' would be written twice, by operation 'three' and by 'three'"
    ):
        g.add("three", None, "x", ["z", "z"])
    assert list(g.ops) == ["one"]


def test_an_input_is_not_written():
    g = Graph("inputs", inputs=["x"])
    with pytest.raises(
        GraphError, match="blob 'x' is an input of the graph and would be written by operation 'a'"
    ):
        g.add("a", None, (), "x")
    g.add("b", None, "x", "y")
    with pytest.raises(GraphError, match="blob 'y' is written by operation 'b' and cannot be an input too"):
        g.input("y")


def test_names_of_operations_differ():
    g = Graph("names", inputs=["x"])
    g.add("a", None, "x")
    with pytest.raises(GraphError, match="there is an operation 'a' already"):
        g.add("a", None, "x", "z")
    with pytest.raises(ValueError, match="operation 'b': ahead must be at least 1 item, got 0"):
        g.add("b", None, "x", ahead=0)


def test_feeds_that_are_missing_or_too_many_are_named():
    with pytest.raises(GraphError, match="diamond: 'x' must be fed; 'y' is no input; its inputs are x"):
        evaluate(diamond(), {"y": 1})


def test_a_wrong_number_of_returned_values_is_named():
    g = Graph("arity")
    g.add("pair", lambda: (1, 2, 3), (), ["a", "b"])
    with pytest.raises(ValueError, match="it writes 2 blobs \\(a, b\\) and returned 3 values"):
        evaluate(g)
    h = Graph("no function")
    h.add("a", None)
    with pytest.raises(GraphError, match="operation 'a' has no function"):
        evaluate(h)
