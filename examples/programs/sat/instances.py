#!/usr/bin/env python3
"""Writes problems for the SAT solver as NDJSON: a key and a DIMACS text each.

pigeons-N     N pigeons in N-1 holes: cannot be
queens-N      N queens on a board, none of which attacks another: can be from 4 on
colours-N-K   a ring of N countries in K colours: of two if N is even
random-SEED   100 variables and 426 clauses of three: where it is hardest to tell
"""
import itertools
import json
import random
import sys


def pigeons(n):
    at = lambda pigeon, hole: pigeon * (n - 1) + hole + 1
    yield from ([at(p, h) for h in range(n - 1)] for p in range(n))
    for h in range(n - 1):
        yield from ([-at(p, h), -at(q, h)] for p, q in itertools.combinations(range(n), 2))


def queens(n):
    fields = list(itertools.product(range(n), range(n)))
    at = lambda field: field[0] * n + field[1] + 1
    yield from ([at((row, column)) for column in range(n)] for row in range(n))
    for a, b in itertools.combinations(fields, 2):
        if a[0] == b[0] or a[1] == b[1] or abs(a[0] - b[0]) == abs(a[1] - b[1]):
            yield [-at(a), -at(b)]


def colours(n, k):
    at = lambda country, colour: country * k + colour + 1
    for country in range(n):
        yield [at(country, colour) for colour in range(k)]
        yield from ([-at(country, colour), -at((country + 1) % n, colour)] for colour in range(k))


def random_clauses(seed):
    numbers = random.Random(seed)
    for _ in range(426):
        yield [v if numbers.random() < 0.5 else -v for v in numbers.sample(range(1, 101), 3)]


def dimacs(clauses):
    clauses = list(clauses)
    variables = max(abs(v) for clause in clauses for v in clause)
    lines = [f"p cnf {variables} {len(clauses)}"] + [" ".join(map(str, clause + [0])) for clause in clauses]
    return "\n".join(lines) + "\n"


INSTANCES = {f"pigeons-{n}": pigeons(n) for n in range(3, 8)}
INSTANCES |= {f"queens-{n}": queens(n) for n in (3, 4, 8, 12)}
INSTANCES |= {f"colours-{n}-{k}": colours(n, k) for n in (9, 10) for k in (2, 3)}
INSTANCES |= {f"random-{seed}": random_clauses(seed) for seed in range(10)}

for key, clauses in INSTANCES.items():
    json.dump({"key": key, "payload": dimacs(clauses)}, sys.stdout)
    print()
