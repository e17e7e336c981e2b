"""Aggregators of multiple instance learning (MIL) against recorded outputs of the authors' code."""

import pytest
from recorded import Row, hold_to_recorded, layer

ACMIL = {
    **layer("content", "attention.attention_V.0"),
    **layer("gate", "attention.attention_U.0"),
    "score.weight": "attention.attention_weights.weight",
}
INSTANCES = [
    Row(
        case="abmilp_clam/gated",
        spec="abmilp(hidden=4)",
        names={
            **layer("content", "attention_net.attention_a.0"),
            **layer("gate", "attention_net.attention_b.0"),
            "score.weight": "attention_net.attention_c.weight",
        },
    ),
    Row(
        case="abmilp_clam/plain",
        spec="abmilp(hidden=4, gated=False)",
        names={
            **layer("content", "attention_net.module.0"),
            "score.weight": "attention_net.module.2.weight",
        },
    ),
    Row(
        case="dsmil/plain",
        spec="dsmil(k=3, hidden=4)",
        names={
            "score.weight": "i_classifier.fc.0.weight",
            **layer("query.0", "b_classifier.q.0"),
            **layer("query.2", "b_classifier.q.2"),
        },
    ),
    Row(case="acmil/plain", spec="acmil(k=3, hidden=4)", names=ACMIL),
    Row(case="acmil/masked", spec="acmil(k=3, hidden=4, top=2, drop=1)", names=ACMIL, training=True),
]


@pytest.mark.parametrize("row", INSTANCES, ids=str)
def test_mil_aggregators_match_recorded_outputs(golden, row):
    hold_to_recorded(golden / "instances", row)
