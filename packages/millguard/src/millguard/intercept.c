/* Preloaded into the programs of a guarded build: sends compilers through the gate.
 *
 * The gate is a program that starts one compiler when the guard says that there is memory for it (gate.c).
 * LD_PRELOAD names this library. When one of the build's programs starts a compiler, the gate is started
 * instead, with the compiler's path and arguments. So a compiler is found however the build names it: on
 * PATH, by an absolute path, by a compiler cache that has missed. Nothing is put in front of the compiler on
 * disk, and no path of ours gets into a CMakeCache.txt.
 *
 * MILLGUARD_GATE       the folder of the build's guard; without it this library does nothing
 * MILLGUARD_PROGRAM    the path of the gate
 * MILLGUARD_PRELOAD    the path of this library
 * MILLGUARD_GATED      set by the gate: programs that a compiler starts need no second gate
 * MILLGUARD_ARGV0      for the gate: the compiler's argv[0], by which clang knows whether it is clang++
 *
 * A program that does not load this library, because it is linked statically, is written in Go or has 32 bits,
 * may start a compiler that does. Then the library finds itself in a compiler that came through no gate, and
 * replaces it by the gate before its main function runs.
 *
 * A program may start others with an environment of its own making (env -i, tox, pip's build isolation).
 * Variables that it dropped are added again, or the guard would lose sight of everything below it.
 *
 * Everything here may run between vfork and exec: it allocates on the stack only, and takes no lock.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <spawn.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/stat.h>
#include <unistd.h>

#define COUNT(array) (sizeof(array) / sizeof *(array))
#define EXPORTED __attribute__((visibility("default")))

typedef int execve_function(const char *, char *const[], char *const[]);
typedef int spawn_function(
    pid_t *, const char *, const posix_spawn_file_actions_t *, const posix_spawnattr_t *, char *const[], char *const[]);

extern char **environ;

static execve_function *real_execve, *real_execvpe;
static spawn_function *real_posix_spawn, *real_posix_spawnp;

/* "NAME=value" of each variable that every program of the build must have. They are static, because nothing
 * may be allocated later. A longer path leaves the library inactive, and the compilers unguarded. */
enum { GATE, PROGRAM, PRELOAD, VARIABLES };
static const char *const names[VARIABLES] = {"MILLGUARD_GATE", "MILLGUARD_PROGRAM", "MILLGUARD_PRELOAD"};
static char variables[VARIABLES][PATH_MAX + 32];
static const char *program, *preload; /* the values of two of them: the paths of the gate and of this library */
static int is_active;                 /* compilers that this process starts go through the gate */
static int is_ungated;                /* this process is a compiler itself, and is about to become a gate */

static void become_gate(char *const argv[], char *const environment[]);

/* Read the variables, before main and before any other thread. glibc passes the arguments of main, musl none. */
__attribute__((constructor)) static void load(int argc, char **argv, char **environment)
{
    (void)argc;
    real_execve = (execve_function *)dlsym(RTLD_NEXT, "execve");
    real_execvpe = (execve_function *)dlsym(RTLD_NEXT, "execvpe");
    real_posix_spawn = (spawn_function *)dlsym(RTLD_NEXT, "posix_spawn");
    real_posix_spawnp = (spawn_function *)dlsym(RTLD_NEXT, "posix_spawnp");
    const char *gated = getenv("MILLGUARD_GATED");
    if (gated != NULL && *gated)
        return;
    for (int i = 0; i < VARIABLES; i++) {
        const char *value = getenv(names[i]);
        if (value == NULL || !*value || strlen(value) > PATH_MAX)
            return;
        snprintf(variables[i], sizeof variables[i], "%s=%s", names[i], value);
    }
    program = variables[PROGRAM] + strlen(names[PROGRAM]) + 1;
    preload = variables[PRELOAD] + strlen(names[PRELOAD]) + 1;
    is_active = 1;
#ifdef __GLIBC__
    become_gate(argv, environment);
#else
    (void)argv, (void)environment;
#endif
}

/* Return the rest of a name that begins with a word; NULL if it does not. */
static const char *skip(const char *name, const char *word)
{
    size_t length = strlen(word);
    return strncmp(name, word, length) == 0 ? name + length : NULL;
}

/* Tell whether the rest of a name is a version: "", "-12", "-17.0.6". Not "1" of cc1, gcc's compiler proper. */
static int is_version(const char *rest)
{
    return *rest == 0 || (*rest == '-' && rest[1] != 0 && strspn(rest + 1, "0123456789.") == strlen(rest + 1));
}

/* Tell whether a program is a compiler by its name: "c++", "gcc-12", "x86_64-conda-linux-gnu-g++", "nvcc". */
static int names_compiler(const char *path)
{
    static const char *const compilers[] = {
        "gcc", "g++", "clang", "clang++", "gfortran", "flang", "icx", "icpx", "ifx", "dpcpp", "nvcc", "nvc",
        "nvc++", "nvfortran", "hipcc", "amdclang", "amdclang++", "rustc", "armclang", "armclang++", "cc", "c++"};
    /* The last two, "cc" and "c++", also end the names of other programs, such as protoc-gen-cc. They count as
       the whole name, or behind a target of at least three parts, as in "arm-none-eabi-cc". */
    enum { AMBIGUOUS = 2, TARGET_PARTS = 3 };
    const char *slash = strrchr(path, '/');
    const char *name = slash == NULL ? path : slash + 1;
    int parts_before = 0; /* a cross compiler's name begins with its target, in parts split at dashes */
    for (const char *part = name; part != NULL; parts_before++) {
        int all_count = parts_before == 0 || parts_before >= TARGET_PARTS;
        size_t candidates = all_count ? COUNT(compilers) : COUNT(compilers) - AMBIGUOUS;
        for (size_t i = 0; i < candidates; i++) {
            const char *rest = skip(part, compilers[i]);
            if (rest != NULL && is_version(rest))
                return 1;
        }
        part = strchr(part, '-');
        part = part == NULL ? NULL : part + 1;
    }
    return 0;
}

/* Tell whether a path leads to a compiler cache or a distributor: "gcc" may be a link to ccache. It is no
 * compiler itself, and the compiler that it starts if it has no result is intercepted. */
static int is_cache(const char *path)
{
    static const char *const caches[] = {"ccache", "sccache", "distcc", "icecc", "buildcache"};
    char target[PATH_MAX];
    if (realpath(path, target) == NULL)
        return 0;
    const char *name = strrchr(target, '/') + 1;
    for (size_t i = 0; i < COUNT(caches); i++)
        if (strcmp(name, caches[i]) == 0)
            return 1;
    return 0;
}

/* Tell whether a path leads to a file that this process may run. */
static int is_program(const char *path)
{
    struct stat file;
    return stat(path, &file) == 0 && S_ISREG(file.st_mode) && access(path, X_OK) == 0;
}

/* Find a program on this process's PATH, as execvp does; 0 if there is none. */
static int find_program(const char *name, char found[PATH_MAX])
{
    const char *path = getenv("PATH");
    if (strchr(name, '/') != NULL) {
        if (strlen(name) >= PATH_MAX)
            return 0;
        strcpy(found, name);
        return is_program(found);
    }
    for (const char *entry = path; entry != NULL; ) {
        size_t length = strcspn(entry, ":");
        const char *folder = length > 0 ? entry : "."; /* an empty entry is the current folder */
        int written = snprintf(found, PATH_MAX, "%.*s/%s", length > 0 ? (int)length : 1, folder, name);
        if (written < PATH_MAX && is_program(found))
            return 1;
        entry = entry[length] == ':' ? entry + length + 1 : NULL;
    }
    return 0;
}

/* Return the number of words before the NULL; 0 for no list at all. */
static size_t count(char *const words[])
{
    size_t number = 0;
    while (words != NULL && words[number] != NULL)
        number++;
    return number;
}

/* Return the value of a variable in an environment; NULL if it has none. */
static const char *value_of(char *const environment[], const char *name)
{
    size_t length = strlen(name);
    for (size_t i = 0; environment != NULL && environment[i] != NULL; i++)
        if (strncmp(environment[i], name, length) == 0 && environment[i][length] == '=')
            return environment[i] + length + 1;
    return NULL;
}

/* Return the libraries of LD_PRELOAD without this one, which is the first if it is in the list. */
static const char *other_libraries(char *const environment[])
{
    const char *libraries = value_of(environment, "LD_PRELOAD");
    if (libraries == NULL)
        return "";
    const char *rest = skip(libraries, preload);
    if (rest == NULL || (*rest != 0 && *rest != ':'))
        return libraries;
    return *rest == ':' ? rest + 1 : rest;
}

/* Fill `copy` with an environment, and with our variables that it lacks.
 *
 * `copy` has room for VARIABLES + 3 entries more; `libraries` has `size` bytes for the entry LD_PRELOAD. A
 * variable that the environment has stays, even if it is empty: so a user can take one command out of the
 * guard. For the gate, `argv0` is the entry MILLGUARD_ARGV0, else NULL. The gate does not get this library,
 * which would send the compiler that it starts to a gate again. */
static void complete(char *const environment[], char **copy, char *libraries, size_t size, char *argv0)
{
    size_t number = 0;
    const char *rest = other_libraries(environment);
    for (size_t i = 0; environment != NULL && environment[i] != NULL; i++)
        if (skip(environment[i], "LD_PRELOAD=") == NULL)
            copy[number++] = environment[i];
    for (int i = 0; i < VARIABLES; i++)
        if (value_of(environment, names[i]) == NULL)
            copy[number++] = variables[i];
    const char *first = argv0 == NULL ? preload : "";
    if (*first || *rest) {
        snprintf(libraries, size, "LD_PRELOAD=%s%s%s", first, *first && *rest ? ":" : "", rest);
        copy[number++] = libraries;
    }
    if (argv0 != NULL)
        copy[number++] = argv0;
    copy[number] = NULL;
}

/* Tell whether a program must go through the gate, and find its path.
 *
 * `searches` is true for functions that look for the program on PATH. */
static int must_be_gated(const char *name, int searches, char found[PATH_MAX])
{
    if (!names_compiler(name))
        return 0;
    if (searches ? !find_program(name, found) : strlen(name) >= PATH_MAX || !is_program(name))
        return 0; /* the caller gets the error that it would get without us */
    if (!searches)
        strcpy(found, name);
    return !is_cache(found);
}

/* Start a program as execve or, if `spawns` is true, as posix_spawn does, which alone takes `pid`, `actions`
 * and `attributes`. `searches` is true for the variants that look for the program on PATH.
 *
 * exec never returns, so nothing could free memory that was allocated for it. All arrays are on the stack of
 * this function, which is why it is not split. */
static int start(
    const char *name, int searches, char *const argv[], char *const environment[],
    pid_t *pid, const posix_spawn_file_actions_t *actions, const posix_spawnattr_t *attributes, int spawns)
{
    execve_function *execute = searches ? real_execvpe : real_execve;
    spawn_function *spawn = searches ? real_posix_spawnp : real_posix_spawn;
    if (!is_active || name == NULL)
        return spawns ? spawn(pid, name, actions, attributes, argv, environment) : execute(name, argv, environment);
    char found[PATH_MAX];
    int gated = must_be_gated(name, searches, found);
    size_t words = count(argv);
    const char *argv0 = words > 0 ? argv[0] : name;
    size_t size = sizeof "LD_PRELOAD=:" + strlen(preload) + strlen(other_libraries(environment));
    char libraries[size];
    char argv0_entry[sizeof "MILLGUARD_ARGV0=" + strlen(argv0)];
    char *gate_argv[words + 3];
    char *copy[count(environment) + VARIABLES + 3];
    snprintf(argv0_entry, sizeof argv0_entry, "MILLGUARD_ARGV0=%s", argv0);
    complete(environment, copy, libraries, size, gated ? argv0_entry : NULL);
    if (gated) {
        gate_argv[0] = (char *)program;
        gate_argv[1] = found;
        for (size_t i = 1; i < words; i++)
            gate_argv[i + 1] = argv[i];
        gate_argv[words > 0 ? words + 1 : 2] = NULL;
        if (!spawns)
            real_execve(program, gate_argv, copy);
        else if (real_posix_spawn(pid, program, actions, attributes, gate_argv, copy) == 0)
            return 0;
        /* The gate is gone, as when somebody empties the cache: the build must not fail for that. */
        if (is_ungated)
            return -1;
    }
    if (spawns)
        return spawn(pid, name, actions, attributes, argv, copy);
    return execute(name, argv, copy);
}

/* Replace this process by the gate if it is a compiler. It is one here only if it came through no gate. */
static void become_gate(char *const argv[], char *const environment[])
{
    const char *path = (const char *)getauxval(AT_EXECFN); /* as the caller of execve has named it */
    char found[PATH_MAX], named[PATH_MAX], running[PATH_MAX];
    if (path == NULL || !must_be_gated(path, 0, found))
        return;
    /* The path of a script is not that of the program that runs: its interpreter is not the compiler. */
    if (realpath(path, named) == NULL || realpath("/proc/self/exe", running) == NULL || strcmp(named, running) != 0)
        return;
    is_ungated = 1;
    start(path, 0, argv, environment, NULL, NULL, NULL, 0);
    is_ungated = 0;
}

EXPORTED int execve(const char *path, char *const argv[], char *const environment[])
{
    return start(path, 0, argv, environment, NULL, NULL, NULL, 0);
}

EXPORTED int execv(const char *path, char *const argv[])
{
    return start(path, 0, argv, environ, NULL, NULL, NULL, 0);
}

EXPORTED int execvpe(const char *file, char *const argv[], char *const environment[])
{
    return start(file, 1, argv, environment, NULL, NULL, NULL, 0);
}

EXPORTED int execvp(const char *file, char *const argv[])
{
    return start(file, 1, argv, environ, NULL, NULL, NULL, 0);
}

EXPORTED int posix_spawn(
    pid_t *pid, const char *path, const posix_spawn_file_actions_t *actions, const posix_spawnattr_t *attributes,
    char *const argv[], char *const environment[])
{
    return start(path, 0, argv, environment, pid, actions, attributes, 1);
}

EXPORTED int posix_spawnp(
    pid_t *pid, const char *file, const posix_spawn_file_actions_t *actions, const posix_spawnattr_t *attributes,
    char *const argv[], char *const environment[])
{
    return start(file, 1, argv, environment, pid, actions, attributes, 1);
}

/* For the functions that take the program's words as arguments: count these, and copy them to the array
 * `words`, which ends with NULL. `last` is run behind the last word, to take execle's environment. */
#define COLLECT(words, first, last)                                                                                  \
    va_list arguments;                                                                                               \
    size_t number = 1;                                                                                               \
    va_start(arguments, first);                                                                                      \
    while (va_arg(arguments, char *) != NULL)                                                                        \
        number++;                                                                                                    \
    va_end(arguments);                                                                                               \
    char *words[number + 1];                                                                                         \
    words[0] = (char *)first;                                                                                        \
    va_start(arguments, first);                                                                                      \
    for (size_t i = 1; i <= number; i++)                                                                             \
        words[i] = va_arg(arguments, char *);                                                                        \
    last;                                                                                                            \
    va_end(arguments)

EXPORTED int execl(const char *path, const char *first, ...)
{
    COLLECT(words, first, (void)0);
    return start(path, 0, words, environ, NULL, NULL, NULL, 0);
}

EXPORTED int execlp(const char *file, const char *first, ...)
{
    COLLECT(words, first, (void)0);
    return start(file, 1, words, environ, NULL, NULL, NULL, 0);
}

EXPORTED int execle(const char *path, const char *first, ...)
{
    char **environment;
    COLLECT(words, first, environment = va_arg(arguments, char **));
    return start(path, 0, words, environment, NULL, NULL, NULL, 0);
}
