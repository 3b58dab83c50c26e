#!/usr/bin/env python3
"""Counts primes: a program that is started once per core and fed one problem a line.

A problem's payload is {"from": 10, "to": 20}; its result {"primes": 4}.
"""
import json
import sys


def is_prime(n):
    return n >= 2 and all(n % f for f in range(2, int(n**0.5) + 1))


def solve(payload):
    first, last = payload["from"], payload["to"]
    if first > last:
        raise ValueError(f"from {first} to {last} is no range")
    return {"primes": sum(is_prime(n) for n in range(first, last))}


for line in sys.stdin:
    question = json.loads(line)
    try:
        answer = {"result": solve(question["payload"])}
    except Exception as error:
        answer = {"error": f"{type(error).__name__}: {error}"}
    print(json.dumps(answer), flush=True)
