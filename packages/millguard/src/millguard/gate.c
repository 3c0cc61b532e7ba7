/* The gate: runs one compiler, once the guard says that there is memory for it.
 *
 *   gate COMPILER ARGUMENT...
 *
 * MILLGUARD_GATE names a folder, called `room` below. It has the guard's socket, `s`, and the files `1`, `2`,
 * …, the slots: if no guard answers, a gate locks one of them while its compiler runs, so that as many run at
 * a time as there are slots. Without the variable, within a compiler that came through a gate already, and if
 * nothing is compiled or linked, the command just runs. MILLGUARD_GATED marks a compiler for the programs that
 * it starts: `1`, or `lost` if the folder cannot be opened. MILLGUARD_ARGV0 is the compiler's argv[0] if that is
 * not its path.
 *
 * To the guard:   ask N\n and N bytes: the working directory and each argument, ended by zeros
 *                 pid N\n: the process group that the compiler leads
 *                 end CODE PEAK KILLED\n: the peak of its largest process in bytes; 1 if memory was short, else 0
 * From the guard: go\n, again\n (end it, and ask again), done\n (believe the failure), stop\n (end it, and fail)
 *
 * The compiler's stderr goes to a file, `said`, and from there to the gate's stderr when it is certain that the
 * compiler will not run again: so its messages appear once. If a signal ended the compiler, the exit code is
 * 128 and the signal's number.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>
#ifdef __linux__
#include <sys/prctl.h>
#include <sys/syscall.h>
#endif
#ifndef MSG_NOSIGNAL
#define MSG_NOSIGNAL 0
#endif
#ifdef __APPLE__
#define RSS_UNIT 1LL
#else
#define RSS_UNIT 1024LL
#endif
#define COUNT(array) (sizeof(array) / sizeof *(array))

enum { CANNOT_RUN = 126, NOT_FOUND = 127, STOPPED = 130 }; /* exit codes, as a shell's */
enum outcome { RAN, WAS_KILLED, RUNS_AGAIN, UNWANTED };    /* killed: by the kernel, for want of memory */
/* A compiler that was asked to end is looked at every 50 ms. */
enum { POLITE = 60 };                                      /* looks until it is killed */
enum { AGAIN = 10 };                                       /* looks until it is asked again */

static int room = -1;                      /* the folder of MILLGUARD_GATE */
static int guard = -1;                     /* the connection to the guard; -1: no guard answers */
static int wake[2];                        /* a pipe to which the signal handler writes: so a signal ends poll */
static pid_t parent, child;                /* the program that started the gate; the compiler, which leads a group */
static volatile sig_atomic_t asked_to_end; /* by this signal */
static int slots[1024], slots_held;
static char *argv0;                        /* of the compiler; NULL: its path */
static int said = -1; /* the file that takes what the compiler writes to stderr */
static int code;      /* of the last run */

/* Become the command: run it in place of the gate. Does not return. */
static void become(char **command)
{
    char *program = command[0];
    command[0] = argv0 == NULL ? program : argv0;
    execvp(program, command);
    int reason = errno;
    dprintf(STDERR_FILENO, "gate: %s: %s\n", program, strerror(reason));
    _exit(reason == ENOENT ? NOT_FOUND : CANNOT_RUN);
}

/* Tell whether a command compiles and links nothing, or reads its source from a pipe, which it can do only once. */
static int needs_no_guard(char **command)
{
    static const char *const words[] = {
        "-", "-E", "-M", "-MM", "-###", "--help*", "--version", "-print-*", "--print*", "-dumpversion", "-V", "-vV",
        "-dumpfullversion", "-dumpmachine", "-dumpspecs", "--preprocess", "--generate-dependencies",
        "--generate-nonsystem-dependencies", "--dryrun", "-dryrun"};
    /* What is tried while a build is configured is tiny, and no measure of the build's own files: the folders of
       CMake and Meson, the sources of Autoconf and setuptools. */
    static const char *const trials[] = {"/CMakeFiles/CMakeScratch/", "/CMakeFiles/CMakeTmp", "/meson-private/tmp"};
    static const char *const trial_sources[] = {"conftest.*", "_configtest.*"};
    char here[4096];
    int operands = 0;
    if (getcwd(here, sizeof here) != NULL)
        for (size_t i = 0; i < COUNT(trials); i++)
            if (strstr(here, trials[i]) != NULL)
                return 1;
    for (char **word = command + 1; *word != NULL; word++) {
        if (strcmp(*word, "-Xlinker") == 0 && word[1] != NULL) {
            word++; /* for the linker, whatever it means to the compiler */
            continue;
        }
        for (size_t i = 0; i < COUNT(words); i++)
            if (fnmatch(words[i], *word, 0) == 0)
                return 1;
        for (size_t i = 0; i < COUNT(trial_sources); i++)
            if (fnmatch(trial_sources[i], *word, 0) == 0)
                return 1;
        operands += **word != '-';
    }
    return operands == 0;
}

/* Note a signal, and wake whoever waits in poll. */
static void on_signal(int number)
{
    int before = errno;
    if (number != SIGCHLD)
        asked_to_end = number;
    if (write(wake[1], "", 1) < 0) { /* full: it wakes all the same */ }
    errno = before;
}

/* Sleep until a file has something, a signal comes or the time is over; return whether the file has. */
static int wait_for(int file, int milliseconds)
{
    struct pollfd ready[] = {{wake[0], POLLIN, 0}, {file, POLLIN, 0}};
    char drop[64];
    if (poll(ready, COUNT(ready), milliseconds) <= 0)
        return 0;
    while (ready[0].revents && read(wake[0], drop, sizeof drop) > 0)
        continue;
    return ready[1].revents != 0;
}

/* Tell whether anybody still waits for the compiler: no signal asked for an end, and the parent lives. */
static int is_wanted(void)
{
    return !asked_to_end && getppid() == parent;
}

/* End, by the signal that asked for it: so make and ninja know that the user wants an end. */
static void leave(void)
{
    if (asked_to_end) {
        signal(asked_to_end, SIG_DFL);
        raise(asked_to_end);
    }
    _exit(STOPPED);
}

/* Sleep while no compiler runs, as wait_for does; leave when nobody waits for the compiler any more. */
static int rest(int file, int milliseconds)
{
    int ready = wait_for(file, milliseconds);
    if (!is_wanted())
        leave();
    return ready;
}

/* Lock one free slot or, if `every` is true, all slots: 1 if that is done, else 0. Without slots it is done.
 *
 * A compiler that was killed for want of memory takes every slot, to run alone. It locks them in their order,
 * and keeps those that it has until the next call: so of two gates that want all slots, one gets them. */
static int lock_slots(int every)
{
    for (int number = slots_held + 1; ; number++) {
        char name[16];
        snprintf(name, sizeof name, "%d", number);
        int file = slots_held < (int)COUNT(slots) ? openat(room, name, O_RDONLY | O_CLOEXEC) : -1;
        if (file < 0)
            return every || number == 1;
        int locked = flock(file, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK; /* else: no locks here */
        if (locked)
            slots[slots_held++] = file;
        else
            close(file);
        if (locked != every) /* one slot was wanted and is locked, or all were wanted and one is not free */
            return locked;
    }
}

/* Unlock all slots that this gate has, by closing their files. */
static void give_slots_back(void)
{
    while (slots_held > 0)
        close(slots[--slots_held]);
}

/* Go on without the guard, which is gone. */
static void lose_guard(void)
{
    if (guard >= 0)
        close(guard);
    guard = -1;
    if (child > 0) {
        kill(-child, SIGCONT); /* the guard may have paused it, and will not resume it */
        lock_slots(0);         /* it goes on in any case; with a slot, it counts for gates that have not started */
    }
}

/* Connect to the guard; lose it if that fails. */
static void reach_guard(void)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX, .sun_path = "s"};
    int here = open(".", O_RDONLY | O_DIRECTORY | O_CLOEXEC), reached = -1;
    guard = socket(AF_UNIX, SOCK_STREAM, 0);
    if (guard >= 0 && here >= 0 && fchdir(room) == 0) { /* the folder's path may be longer than an address holds */
        fcntl(guard, F_SETFD, FD_CLOEXEC);
#ifdef SO_NOSIGPIPE
        setsockopt(guard, SOL_SOCKET, SO_NOSIGPIPE, &(int){1}, sizeof(int));
#endif
        do
            reached = connect(guard, (struct sockaddr *)&address, sizeof address);
        while (reached < 0 && errno == EINTR && is_wanted());
        if (fchdir(here) < 0)
            _exit(CANNOT_RUN);
    }
    if (here >= 0)
        close(here);
    if (reached < 0)
        lose_guard();
}

/* Send data to the guard, all of it unless the guard is lost. */
static void tell(const char *data, size_t length)
{
    while (guard >= 0 && length > 0) {
        ssize_t sent = send(guard, data, length, MSG_NOSIGNAL);
        if (sent < 0 && errno != EINTR)
            lose_guard();
        data += sent > 0 ? sent : 0;
        length -= sent > 0 ? (size_t)sent : 0;
    }
}

/* Read a word of the guard; an empty one if it is gone. */
static const char *hear(void)
{
    static char word[16];
    size_t length = 0;
    while (guard >= 0) {
        ssize_t got = read(guard, word + length, 1);
        if (got > 0 && word[length] == '\n') {
            word[length] = 0;
            return word;
        }
        if (got > 0 && length + 1 < sizeof word)
            length++;
        else if (got >= 0 || errno != EINTR)
            lose_guard(); /* it is gone, or no guard: its word is longer than any of the protocol */
    }
    return "";
}

/* Wait until the guard says one of two words: 1 or 2; or 0 when it is gone. */
static int expect(const char *one, const char *other)
{
    while (guard >= 0) {
        const char *word = rest(guard, 1000) ? hear() : "";
        if (strcmp(word, one) == 0 || strcmp(word, other) == 0)
            return strcmp(word, one) == 0 ? 1 : 2;
        if (strcmp(word, "stop") == 0)
            leave();
    }
    return 0;
}

/* Ask the guard, and wait until the compiler may start; 0 if the guard is gone. */
static int ask(char **command)
{
    char cwd[4096], *text = NULL;
    size_t length = 0, words_length;
    if (guard < 0)
        return 0;
    if (getcwd(cwd, sizeof cwd) == NULL)
        strcpy(cwd, "/");
    words_length = strlen(cwd) + 1;
    for (char **word = command; *word != NULL; word++)
        words_length += strlen(*word) + 1;
    FILE *question = open_memstream(&text, &length);
    if (question == NULL)
        return 0;
    fprintf(question, "ask %zu\n", words_length);
    fwrite(cwd, 1, strlen(cwd) + 1, question);
    for (char **word = command; *word != NULL; word++)
        fwrite(*word, 1, strlen(*word) + 1, question);
    fclose(question);
    tell(text, length);
    free(text);
    if (expect("go", "go"))
        return 1;
    rest(-1, 100); /* compilers that run already take their slots first */
    return 0;
}

/* Return the compiler's stderr in memory, and its length; NULL if it wrote nothing. */
static const char *read_said(size_t *length)
{
    struct stat file = {0};
    fstat(said, &file);
    *length = (size_t)file.st_size;
    char *text = *length > 0 ? mmap(NULL, *length, PROT_READ, MAP_PRIVATE, said, 0) : NULL;
    return text == MAP_FAILED ? NULL : text;
}

/* Write the compiler's stderr to the gate's. */
static void hand_over_said(void)
{
    size_t length;
    for (const char *text = read_said(&length); text != NULL && length > 0; ) {
        ssize_t wrote = write(STDERR_FILENO, text, length);
        if (wrote < 0 && errno != EINTR && errno != EAGAIN)
            break; /* nobody reads it */
        text += wrote > 0 ? wrote : 0;
        length -= wrote > 0 ? (size_t)wrote : 0;
    }
}

/* Tell whether a compiler's stderr says that it had too little memory.
 *
 * The texts are whole phrases of such messages, because a source that the compiler quotes may speak of memory,
 * too. */
static int names_memory(void)
{
    static const char *const words[] = {
        "Killed signal terminated program", "Killed (program", "terminated with signal 9", "due to signal 9",
        "unable to execute command: Killed", "virtual memory exhausted", ": memory exhausted\n",
        ": out of memory\n", "out of memory allocating", ": Cannot allocate memory\n",
        "instance of 'std::bad_alloc'", "of type std::bad_alloc", "Memory allocation failure",
        "\nKilled\n" /* dash, of a program that it has started */ };
    static const char first[] = "Killed\n";
    size_t length;
    const char *text = read_said(&length);
    if (text != NULL && length >= sizeof first - 1 && memcmp(text, first, sizeof first - 1) == 0)
        return 1;
    for (size_t i = 0; text != NULL && i < COUNT(words); i++)
        if (memmem(text, length, words[i], strlen(words[i])) != NULL)
            return 1;
    return 0;
}

/* Tell whether nvcc has failed without naming an error: the kernel has killed a stage of it.
 *
 * With `--threads 2` and more it ends with 255 whatever a stage ended with, and says nothing itself. Its stages
 * are started by `sh -c`: dash says "Killed", bash becomes the stage and cannot say anything. */
static int lost_a_stage(const char *program, int code)
{
    enum { ANY_FAILURE = 255 };
    const char *slash = strrchr(program, '/');
    if (code != ANY_FAILURE || strcmp(slash == NULL ? program : slash + 1, "nvcc") != 0)
        return 0;
    size_t length;
    const char *text = read_said(&length);
    return text == NULL || (memmem(text, length, "error", 5) == NULL && memmem(text, length, "fatal", 5) == NULL);
}

/* Start the compiler as a process group of its own, which the guard can pause and end as a whole.
 *
 * The child shares the gate's memory until it becomes the compiler: a fork would copy tables of pages that
 * nobody needs. So it may change nothing there but `child` and the first word. */
static void start(char **command)
{
    pid_t gate = getpid();
    char *program = command[0];
    child = vfork();
    if (child == 0) {
        setpgid(0, 0);
#ifdef __linux__
        /* If the gate dies, so does the compiler. Not by SIGTERM: a paused process would not receive it. */
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        /* If memory runs out, the kernel shall choose the compiler: it can run again, ninja and the guard cannot. */
        int worth = open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC);
        if (worth >= 0 && write(worth, "1000", 4) < 0) { /* it is as it is */ }
#endif
        if (getppid() != gate) /* the gate died before prctl */
            _exit(STOPPED);
        dup2(said, STDERR_FILENO);
        become(command);
    }
    command[0] = program;
    if (child < 0) {
        dprintf(STDERR_FILENO, "gate: %s: %s\n", command[0], strerror(errno));
        _exit(CANNOT_RUN);
    }
    setpgid(child, child);
}

/* Tell whether the compiler has ended. It is not waited for yet, so that its group keeps its number. */
static int has_ended(void)
{
    siginfo_t which;
    which.si_pid = 0;
    return waitid(P_PID, (id_t)child, &which, WEXITED | WNOHANG | WNOWAIT) == 0 && which.si_pid != 0;
}

/* Run the compiler to its end, and tell the guard of it; return how it ended. */
static enum outcome run(char **command)
{
    enum outcome outcome = RAN;
    int status = 0, asked = 0;
    struct rusage used = {0};
    char line[128];
    if (ftruncate(said, 0) < 0) { /* then its last run is said too */ }
    start(command);
    tell(line, (size_t)snprintf(line, sizeof line, "pid %d\n", (int)child));
    for (int ended = 0; !ended; ) { /* once more when it has: the guard may have ended it, and says so first */
        ended = has_ended();
        const char *word = wait_for(guard, ended ? 0 : outcome == RAN ? 1000 : 50) ? hear() : "";
        if (strcmp(word, "again") == 0)
            outcome = RUNS_AGAIN;
        if (strcmp(word, "stop") == 0 || !is_wanted())
            outcome = UNWANTED;
        if (outcome != RAN) {
            /* It is asked more than once, because the child may not have become the compiler yet. It is not asked at
               each look: gcc removes its files at the first signal, and a second one would kill it meanwhile. */
            if (asked >= POLITE || asked % AGAIN == 0)
                kill(-child, asked >= POLITE ? SIGKILL : asked_to_end ? asked_to_end : SIGTERM);
            kill(-child, SIGCONT);
            asked++;
        }
    }
    if (outcome != RAN)
        kill(-child, SIGKILL); /* programs of its group that it left behind */
    wait4(child, &status, 0, &used);
    child = 0;
    if (outcome != RAN)
        return outcome;
    code = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
    int killed = code == 128 + SIGKILL || (code != 0 && names_memory()) || lost_a_stage(command[0], code);
    tell(line, (size_t)snprintf(line, sizeof line, "end %d %lld %d\n", code, used.ru_maxrss * RSS_UNIT, killed));
    return killed ? WAS_KILLED : RAN;
}

/* Open a file without a name for what the compiler writes to stderr; -1 if that fails.
 *
 * It lies in memory, if the system knows such files: to make one on a disk and remove it takes a third of the
 * gate's time, and a sandbox may show the folder read-only. */
static int open_said(void)
{
    char name[32];
#ifdef SYS_memfd_create
    enum { CLOSE_ON_EXEC = 1, NOT_EXECUTABLE = 8 }; /* the latter is refused before Linux 6.3 */
    int memory = (int)syscall(SYS_memfd_create, "said", CLOSE_ON_EXEC | NOT_EXECUTABLE);
    if (memory < 0)
        memory = (int)syscall(SYS_memfd_create, "said", CLOSE_ON_EXEC);
    if (memory >= 0 && fcntl(memory, F_SETFL, O_APPEND) == 0)
        return memory;
#endif
    snprintf(name, sizeof name, "said.%d", (int)getpid());
    int file = openat(room, name, O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    unlinkat(room, name, 0);
    return file;
}

/* Prepare the stderr file and the signals; become the command if that fails. */
static void prepare(char **command)
{
    static const int signals[] = {SIGCHLD, SIGINT, SIGTERM, SIGHUP};
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_NOCLDSTOP}, before;
    sigset_t heard;
    parent = getppid();
    said = open_said();
    if (said < 0 || pipe(wake) < 0)
        become(command);
    for (int i = 0; i < 2; i++) {
        fcntl(wake[i], F_SETFD, FD_CLOEXEC);
        fcntl(wake[i], F_SETFL, O_NONBLOCK);
    }
    for (size_t i = 0; i < COUNT(signals); i++) {
        sigaction(signals[i], NULL, &before);
        if (signals[i] == SIGCHLD || before.sa_handler != SIG_IGN) /* nohup ignores SIGHUP: that stays so */
            sigaction(signals[i], &action, NULL);
    }
    sigemptyset(&heard);
    sigaddset(&heard, SIGCHLD);
    sigprocmask(SIG_UNBLOCK, &heard, NULL); /* the parent may have blocked it, and children inherit that */
}

int main(int argc, char **argv)
{
    const char *folder = getenv("MILLGUARD_GATE"), *gated = getenv("MILLGUARD_GATED");
    char **command = argv + 1;
    if (argc < 2) {
        fprintf(stderr, "usage: gate COMPILER ARGUMENT...\n");
        return 2;
    }
    argv0 = getenv("MILLGUARD_ARGV0"); /* the text stays in memory when the variable is removed */
    unsetenv("MILLGUARD_ARGV0");
    int is_needed = folder != NULL && *folder && (gated == NULL || !*gated) && !needs_no_guard(command);
    if (is_needed)
        room = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int is_lost = is_needed && room < 0; /* a sandbox hides the folder, or the build is over */
    if (folder != NULL && (gated == NULL || !*gated))
        setenv("MILLGUARD_GATED", is_lost ? "lost" : "1", 1); /* programs that the compiler starts need no gate */
    if (room < 0)
        become(command);
    prepare(command);
    reach_guard();
    for (int alone = 0, killed = 0; ; give_slots_back()) {
        int admitted = ask(command);
        alone = !admitted && killed;
        while (!admitted && !lock_slots(alone))
            rest(-1, 50);
        enum outcome outcome = run(command);
        if (outcome == RAN)
            break;
        if (outcome == UNWANTED)
            leave();
        if (outcome == RUNS_AGAIN)
            continue;
        killed = 1;
        int answer = expect("again", "done");
        if (answer == 2 || (answer == 0 && alone))
            break;
    }
    hand_over_said();
    return code;
}
