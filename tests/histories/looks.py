"""What is wrong with what is shown to those who look, and with the versions of the journal."""

from __future__ import annotations

from collections.abc import Iterator

from tests.histories.anomaly import Anomaly, anomaly
from tests.histories.history import (
    ACCEPTED,
    CLAIMED,
    OK,
    POSTED,
    RELEASED,
    Fact,
    History,
    Operation,
    Place,
)

AVAILABLE, IN_FLIGHT = "available", "in_flight"


def looks(history: History) -> Iterator[Anomaly]:
    """A look shows all of a commit or nothing, and what is gone stays gone."""
    found = sorted(
        (one for one in history.of("look") if one.outcome == OK), key=lambda one: one.got["seq"]
    )
    seen: dict[Place, Operation] = {}
    gone: dict[Place, Operation] = {}
    for one in found:
        shown = history.states(one)
        yield from _torn(history, one, shown)
        for key, before in seen.items():
            if key not in shown:
                yield anomaly("flicker", f"{key[1]} was there before", before, one)
        for key, state in shown.items():
            if state != ACCEPTED and key in gone:
                yield anomaly("flicker", f"{key[1]} was gone before", gone[key], one)
            (gone if state == ACCEPTED else seen).setdefault(key, one)


def _torn(history: History, look: Operation, shown: dict[Place, str]) -> Iterator[Anomaly]:
    queues, known = look.got["states"].keys(), look.got["committed"]
    effects = {txn: {f"commit of {txn}": txn in known} for txn in history.committed}
    for fact in history.said(POSTED, ACCEPTED):
        if fact.txn not in history.committed or fact.queue not in queues:
            continue
        for message in fact.ids:
            state = shown.get((fact.queue, message))
            seen = state is not None if fact.kind == POSTED else state == ACCEPTED
            effects[fact.txn or ""][f"{fact.kind} {message} in {fact.queue}"] = seen
    for txn, found in effects.items():
        if len(set(found.values())) > 1:
            missing = [what for what, seen in found.items() if not seen]
            yield anomaly("torn read", f"of {txn} it does not show {missing}", look)
    for place in shown:
        if history.sender.get(place) not in history.committed:
            yield anomaly("aborted read", f"it shows {place[1]}", look)


def looks_are_exact(history: History) -> Iterator[Anomaly]:
    """A look shows what had landed by the commit that it names: not less, and not more."""
    for look in history.of("look"):
        if look.outcome != OK:
            continue
        seq, states = look.got["seq"], look.got["states"]
        committed = {txn for txn, fact in history.committed.items() if fact.seq <= seq}
        differing = committed ^ set(look.got["committed"])
        if differing:
            yield anomaly("wrong look", f"at {seq} it is wrong of {sorted(differing)}", look)
        standing = _standing(fact for fact in history.facts if fact.seq <= seq)
        expected = {place: state for place, state in standing.items() if place[0] in states}
        shown = {(queue, i): s for queue, listed in states.items() for i, s in listed.items()}
        if shown != expected:
            wrong = dict(sorted(shown.items() ^ expected.items())[:4])
            yield anomaly("wrong look", f"at {seq} it shows otherwise: {wrong}", look)


def _standing(facts: Iterator[Fact]) -> dict[Place, str]:
    """Tell what stands in the queues after some facts, and whether it is held."""
    held: dict[Place, Fact | None] = {}
    for fact in facts:
        if fact.kind == POSTED:
            held.update(dict.fromkeys(fact.places))
        elif fact.kind == CLAIMED:
            for place, claim in held.items():
                if claim is not None and _is_superseded(claim, fact):
                    held[place] = None
            held.update(dict.fromkeys(fact.places, fact))
        elif fact.kind in (ACCEPTED, RELEASED):
            for place in fact.places:
                claim = held.get(place)
                if claim is not None and claim.of_claim == fact.of_claim:
                    held[place] = None
                    if fact.kind == ACCEPTED:
                        del held[place]
    return {place: AVAILABLE if claim is None else IN_FLIGHT for place, claim in held.items()}


def _is_superseded(claim: Fact, by: Fact) -> bool:
    return (claim.queue, claim.lane) == (by.queue, by.lane) and claim.claim in by.supersedes


def versions(history: History) -> Iterator[Anomaly]:
    """Each version shows what had landed by then, and nothing else."""
    for version, shown in history.versions.items():
        landed = {fact.name for fact in history.facts if fact.version <= version}
        if shown != landed:
            strange, missing = sorted(shown - landed)[:3], sorted(landed - shown)[:3]
            yield Anomaly("version changed", f"{version} shows {strange}, and not {missing}")
