#!/usr/bin/env python3
"""Writes problems for the SAT solver as NDJSON: do so many gates suffice for an airline's departures of one day?

    gates.py [AIRPORT [DATE]]

Departures are real: those of the airline example's data, New York in 2013. Nobody has recorded when they came to their gates; here each
is at one from an hour before its scheduled departure to a quarter of an hour after it. Two that overlap have different gates, so
the question is whether the graph of overlaps can be coloured.

The answer is known: intervals need as many gates as there are flights at the busiest moment, and no more. So each airline has two
problems, AIRPORT-AIRLINE-N-enough and AIRPORT-AIRLINE-M-too-few with one gate less.
"""
import csv
import gzip
import itertools
import json
import pathlib
import sys

DATA = pathlib.Path(__file__).resolve().parents[2] / "airline/data/nyc-flights-2013.csv.gz"

BEFORE, AFTER = 60, 15

# One pigeon more than there are holes takes a solver like this one ever longer, by factors.
MOST_GATES = 8


def departures(airport, date):
    """Minutes of the day by airline, in order."""
    of_airline = {}
    with gzip.open(DATA, "rt", newline="") as file:
        for flight in csv.DictReader(file):
            if flight["flight_date"] == date and flight["origin"] == airport and flight["departed"] == "1":
                hours, minutes = divmod(int(flight["departure_time"]), 100)
                of_airline.setdefault(flight["carrier"], []).append(60 * hours + minutes)
    return {airline: sorted(times) for airline, times in of_airline.items()}


def overlap(one, other):
    return abs(one - other) < BEFORE + AFTER


def gates_needed(times):
    """At the busiest moment, which is when somebody comes."""
    return max(sum(overlap(time, other) and other <= time for other in times) for time in times)


def dimacs(times, gates):
    at = lambda flight, gate: flight * gates + gate + 1
    clauses = [[at(flight, gate) for gate in range(gates)] for flight in range(len(times))]
    for one, other in itertools.combinations(range(len(times)), 2):
        if overlap(times[one], times[other]):
            clauses += ([-at(one, gate), -at(other, gate)] for gate in range(gates))
    lines = [f"p cnf {len(times) * gates} {len(clauses)}"] + [" ".join(map(str, clause + [0])) for clause in clauses]
    return "\n".join(lines) + "\n"


airport, date = (sys.argv[1:] + ["LGA", "2013-07-03"][len(sys.argv) - 1:])[:2]
for airline, times in sorted(departures(airport, date).items()):
    needed = gates_needed(times)
    if not 2 <= needed <= MOST_GATES:
        continue
    for gates, answer in [(needed, "enough"), (needed - 1, "too-few")]:
        key = f"{airport}-{airline}-{gates}-{answer}"
        json.dump({"key": key, "payload": dimacs(times, gates)}, sys.stdout)
        print()
