/* Does what its payload says, {"do": "…", "n": …}: a module as it should be, or as bad as it can be. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static long long solved = 0;

/* What a compiler must not leave out. */
static char *volatile kept;

static long long number(const char *text) {
    const char *at = strstr(text, "\"n\":");
    return at ? atoll(at + 4) : 0;
}

static void answer(long long n) { printf("{\"result\": %lld}\n", n); }

static int recurse(int n) {
    volatile char frame[256];
    frame[n % 256] = 1;
    return recurse(n + 1) + frame[(n + 1) % 256];
}

int main(int argc, char **argv) {
    char *line = NULL;
    size_t room = 0;
    while (getline(&line, &room, stdin) >= 0) {
        const char *payload = strstr(line, "\"payload\":");
        long long n = number(payload);
        solved++;
#define DO(what) (strstr(payload, "\"do\":\"" what "\"") != NULL)
        if (DO("double")) {
            answer(2 * n);
        } else if (DO("echo")) {
            line[strcspn(line, "\n")] = 0;
            printf("{\"result\": %s}\n", line);
        } else if (DO("how many")) {
            answer(solved);
        } else if (DO("walk and say how many")) {
            unsigned long long at = 1;
            for (long long i = 0; i < n; i++)
                at = at * 6364136223846793005u + 1442695040888963407u;
            kept = (char *)(uintptr_t)at;
            answer(solved);
        } else if (DO("refuse")) {
            fprintf(stderr, "a line on standard error\n");
            printf("{\"error\": \"no luck\"}\n");
        } else if (DO("walk")) {
            unsigned long long at = 1;
            for (long long i = 0; i < n; i++)
                at = at * 6364136223846793005u + 1442695040888963407u;
            answer((long long)(at >> 33));
        } else if (DO("loop")) {
            for (volatile unsigned i = 0;; i++) {
            }
        } else if (DO("loop slowly")) {
            for (volatile unsigned i = 0;; i++)
                time(NULL);
        } else if (DO("flood")) {
            for (;;)
                fwrite("xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx", 1, 60, stdout);
        } else if (DO("flood stderr")) {
            for (;;)
                fprintf(stderr, "yyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyy\n");
        } else if (DO("flood progress")) {
            for (long long i = 0; i < n; i++)
                printf("{\"progress\": %lld}\n", i);
            answer(n);
        } else if (DO("hog")) {
            for (size_t all = 0;; all += 1 << 20) {
                char *more = malloc(1 << 20);
                if (more == NULL) {
                    fprintf(stderr, "no more than %zu MiB\n", all >> 20);
                    abort();
                }
                memset(more, 1, 1 << 20);
                kept = more;
            }
        } else if (DO("have")) {
            char *some = malloc(n);
            memset(some, 7, n);
            answer(some[n - 1]);
            free(some);
        } else if (DO("recurse")) {
            answer(recurse(1));
        } else if (DO("out of bounds")) {
            answer(*(volatile char *)(uintptr_t)0xfffffff0u);
        } else if (DO("divide")) {
            volatile long long zero = 0;
            answer(7 / zero);
        } else if (DO("abort")) {
            fprintf(stderr, "it is all over\n");
            abort();
        } else if (DO("exit")) {
            exit((int)n);
        } else if (DO("answer and exit")) {
            answer(n);
            exit(1);
        } else if (DO("no json")) {
            puts("hello world");
        } else if (DO("no answer")) {
            puts("{\"reslut\": 1}");
        } else if (DO("half")) {
            printf("{\"result\": 1");
            exit(0);
        } else if (DO("half and on")) {
            printf("{\"result\": 1");
            fflush(stdout);
        } else if (DO("two lines")) {
            answer(1);
            answer(2);
        } else if (DO("nothing")) {
        } else if (DO("close")) {
            close(1);
            exit(3);
        } else if (DO("wrong id")) {
            printf("{\"id\": \"7\", \"result\": 1}\n");
        } else if (DO("nul")) {
            printf("{\"result\": \"\\u0000\"}\n");
        } else if (DO("large")) {
            printf("{\"result\": \"");
            for (long long i = 0; i < n; i++)
                putchar('x');
            printf("\"}\n");
        } else if (DO("enqueue")) {
            printf("{\"result\": 1, \"enqueue\": [{\"key\": \"next\", \"payload\": {\"n\": 1}}], \"info\": {\"seen\": true}}\n");
        } else if (DO("look")) {
            /* What it has of the world: an argument, no environment, no file, a clock, random numbers. */
            struct timespec now;
            unsigned char random[16] = {0};
            int sum = 0;
            FILE *passwd = fopen("/etc/passwd", "r"), *made = fopen("left", "w");
            extern char **environ;
            clock_gettime(CLOCK_REALTIME, &now);
            getentropy(random, sizeof random);
            for (size_t i = 0; i < sizeof random; i++)
                sum += random[i];
            printf("{\"result\": {\"argc\": %d, \"argv\": \"%s\", \"environment\": %s, \"reads\": %s, \"writes\": %s, "
                   "\"clock\": %s, \"coarse\": %s, \"random\": %s}}\n",
                   argc, argv[0], environ && environ[0] ? "true" : "false", passwd ? "true" : "false",
                   made ? "true" : "false", now.tv_sec > 1700000000 ? "true" : "false",
                   now.tv_nsec % 1000000 == 0 ? "true" : "false", sum > 0 ? "true" : "false");
        } else {
            printf("{\"error\": \"do what?\"}\n");
        }
        fflush(stdout);
    }
    return 0;
}
