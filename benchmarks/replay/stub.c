/* A compiler that compiles nothing: it takes memory along a recorded curve, and its time.
 *
 * Its source says how: bytes, seconds, then the curve as fractions of the bytes at evenly spread times.
 * While it is stopped, or gets no processor, its time stands still, as a compiler's does; what taking
 * memory costs is of its time. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#define POINTS 512
#define STEP 0.01              /* seconds between two looks at the clock */
#define PAGE 4096
#define HUGE (2UL << 20)       /* touched by huge pages, the stubs leave the processors to the build */

static volatile sig_atomic_t stopped;

static void resumed(int signal_number)
{
    (void)signal_number;
    stopped = 1;
}

static double now(clockid_t clock)
{
    struct timespec t;
    clock_gettime(clock, &t);
    return t.tv_sec + t.tv_nsec / 1e9;
}

static double most(double a, double b)
{
    return a > b ? a : b;
}

static double level(const double *curve, int points, double done)
{
    double at = done * (points - 1);
    int i = (int)at;
    return i >= points - 1 ? curve[points - 1] : curve[i] + (curve[i + 1] - curve[i]) * (at - i);
}

/* Have `want` bytes at `memory`, where there are `have`. */
static size_t resize(char *memory, size_t have, size_t want)
{
    for (; have < want; have += PAGE)
        memory[have] = 1;
    if (want + HUGE < have) {
        size_t end = (want + HUGE - 1) / HUGE * HUGE;
        madvise(memory + end, have - end, MADV_DONTNEED);
        have = end;
    }
    return have;
}

int main(int argc, char **argv)
{
    const char *source = NULL, *object = NULL;
    for (int i = 1; i + 1 < argc; i++) {
        if (!strcmp(argv[i], "-c"))
            source = argv[i + 1];
        if (!strcmp(argv[i], "-o"))
            object = argv[i + 1];
    }
    double bytes, seconds, curve[POINTS];
    int points = 0;
    FILE *file = source ? fopen(source, "r") : NULL;
    if (!file || !object || fscanf(file, "%lf %lf", &bytes, &seconds) != 2)
        return 2;
    while (points < POINTS && fscanf(file, "%lf", &curve[points]) == 1)
        points++;
    fclose(file);

    size_t size = ((size_t)bytes / HUGE + 2) * HUGE, have = 0;
    char *memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED)
        return 3;
    memory += HUGE - (size_t)memory % HUGE;
    madvise(memory, size - HUGE, MADV_HUGEPAGE);
    signal(SIGCONT, resumed);
    double done = 0, last = now(CLOCK_MONOTONIC), worked = now(CLOCK_PROCESS_CPUTIME_ID);
    for (int next = 0; done < seconds && points;) {
        for (; next < points && next <= done / seconds * (points - 1); next++)  /* leave out no peak */
            have = resize(memory, have, (size_t)(bytes * curve[next]));
        have = resize(memory, have, (size_t)(bytes * level(curve, points, done / seconds)));
        nanosleep(&(struct timespec){0, (long)(STEP * 1e9)}, NULL);
        double time = now(CLOCK_MONOTONIC), work = now(CLOCK_PROCESS_CPUTIME_ID), passed = time - last;
        done += most(work - worked, stopped ? STEP : passed > 5 * STEP ? 5 * STEP : passed);
        stopped = 0;
        last = time;
        worked = work;
    }
    file = fopen(object, "w");
    return !file || fclose(file);
}
