/* Counts the primes of a range: a problem is {"from": 0, "to": 100}, its solution {"primes": 25}.
 *
 * One source, two ways to run it. As a module that a job type ships, in a sandbox on any workstation:
 *
 *     clang --target=wasm32-wasi -O2 -o primes.wasm primes.c
 *
 * or as a program that is installed there (exec): cc -O2 -o primes primes.c
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The whole number behind "name": in text; 0 if there is none. */
static int number(const char *text, const char *name, long long *value) {
    const char *at = strstr(text, name);
    char *end;
    if (at == NULL)
        return 0;
    at += strlen(name);
    *value = strtoll(at, &end, 10);
    return end != at;
}

static int is_prime(long long n) {
    if (n < 2)
        return 0;
    for (long long f = 2; f * f <= n; f++)
        if (n % f == 0)
            return 0;
    return 1;
}

int main(void) {
    char *line = NULL;
    size_t room = 0;
    while (getline(&line, &room, stdin) >= 0) {
        /* Within a JSON text a quote has a backslash before it, so this is no part of a key. */
        const char *payload = strstr(line, "\"payload\":");
        long long from, to, primes = 0;
        if (payload == NULL || !number(payload, "\"from\":", &from) || !number(payload, "\"to\":", &to)) {
            puts("{\"error\": \"from and to are wanted, two whole numbers\"}");
        } else if (from > to) {
            printf("{\"error\": \"from %lld to %lld is no range\"}\n", from, to);
        } else {
            for (long long n = from; n < to; n++)
                primes += is_prime(n);
            printf("{\"result\": {\"primes\": %lld}}\n", primes);
        }
        /* An answer is written at once: the next question comes after it. */
        fflush(stdout);
    }
    return 0;
}
