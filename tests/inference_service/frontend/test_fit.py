from __future__ import annotations

import pytest

from engine_ops.graph import Graph
from enginehouse.errors import DataLoss
from inference_service.frontend.fit import check_graph

from .serving import manifest


def test_a_graph_without_logits_does_not_fit_its_manifest() -> None:
    nothing = Graph("enginehouse.graph", 1, "m", inputs={}, pools={}, weights={}, nodes=(), values={}, outputs={})
    with pytest.raises(DataLoss) as caught:
        check_graph(nothing, manifest())
    assert caught.value.reason == "MANIFEST_MISMATCH"
