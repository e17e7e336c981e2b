"""VATEX with half of the validation videos for testing, as in HGR: VSE-infinity, table 4."""

from __future__ import annotations

from infra.spec import changed
from pipelines.recipe import derive, recipe
from pipelines.recipes import msrvtt
from tasks.run import Run


def on_vatex(run: Run) -> Run:
    """Return an MSR-VTT run on VATEX: its I3D features, ten English captions a video."""
    return derive(
        run,
        data={"dataset": "vatex", "corpus": "data/vatex", "features": "data/vatex/i3d", "captions": 10},
        model=run.model and changed(run.model, graphs="data/vatex/sent2rolegraph.augment.json"),
        protocol="vatex-1500",
    )


@recipe("vatex_vse_infinity", published={"vatex-1500/rsum": 403.9}, source="VSE-infinity, table 4")
def vatex_vse_infinity() -> Run:
    """VSE-infinity: the clips of I3D and a BiGRU."""
    return on_vatex(msrvtt.msrvtt_vse_infinity())


@recipe("vatex_vsepp", published={"vatex-1500/rsum": 400.3}, source="VSE-infinity, table 4, VSE++")
def vatex_vsepp() -> Run:
    """VSE++: the mean of the clips and of the words."""
    return on_vatex(msrvtt.msrvtt_vsepp())


@recipe("vatex_hgr", published={"vatex-1500/rsum": 408.4}, source="VSE-infinity, table 4, HGR")
def vatex_hgr() -> Run:
    """HGR: three levels of clips and of a role graph."""
    return on_vatex(msrvtt.msrvtt_hgr())


@recipe(
    "vatex_hgr_infinity", published={"vatex-1500/rsum": 410.6}, source="VSE-infinity, table 4, HGR-infinity"
)
def vatex_hgr_infinity() -> Run:
    """HGR with GPO in its global branch."""
    return on_vatex(msrvtt.msrvtt_hgr_infinity())
