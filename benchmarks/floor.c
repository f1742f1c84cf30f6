/* The floor: the system calls that one file per message cannot do without, and nothing else.
 *
 *   floor store DIR COUNT SIZE TAKE        publish COUNT, then claim + read + remove TAKE of them
 *   floor files DIR SIZE                   the same in turns: a line `put COUNT` or `get COUNT` on stdin, the CPU on stdout
 *   floor links DIR SIZE                   the same with symbolic links
 *   floor produce DIR FIRST COUNT SIZE NS  publish after a line on stdin, one each NS nanoseconds (0: as fast as it goes)
 *   floor consume DIR DONE                 after a line on stdin: take until DIR is empty and the file DONE exists
 *   floor list DIR                         one pass over the names
 *
 * Each prints one JSON object.  publish: openat write close renameat.  take: renameat openat read close unlinkat.
 * With links: symlinkat; readlinkat renameat unlinkat.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define HEAD 33 /* "NNNNNNNNNNNN TTTTTTTTTTTTTTTTTTT " */
typedef long long i64;
static int links; /* whether messages are symbolic links */

static i64 nanos(clockid_t clock) {
    struct timespec t;
    clock_gettime(clock, &t);
    return t.tv_sec * 1000000000LL + t.tv_nsec;
}
static i64 wall(void) { return nanos(CLOCK_MONOTONIC); }
static i64 cpu(void) { return nanos(CLOCK_PROCESS_CPUTIME_ID); }

static void die(const char *what) {
    perror(what);
    exit(1);
}

static int ascending(const void *a, const void *b) {
    i64 x = *(const i64 *)a, y = *(const i64 *)b;
    return (x > y) - (x < y);
}

static int by_name(const void *a, const void *b) { return strcmp(*(char *const *)a, *(char *const *)b); }

static int open_dir(const char *path) {
    mkdir(path, 0777);
    int dir = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (dir < 0) die(path);
    return dir;
}

static void publish(int dir, i64 number, char *body, size_t size) {
    char new[80], name[64], head[HEAD + 1];
    snprintf(name, sizeof name, "%lld%09d", 1700000000000000LL + number, 123456789);
    snprintf(new, sizeof new, "%s.new", name);
    snprintf(head, sizeof head, "%012lld %019lld ", number, wall());
    memcpy(body, head, size < HEAD ? size : HEAD);
    if (links) {
        body[size] = 0;
        if (symlinkat(body, dir, name)) die(name);
        return;
    }
    int file = openat(dir, new, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (file < 0) die(new);
    for (size_t done = 0; done < size;) {
        ssize_t more = write(file, body + done, size - done);
        if (more <= 0) die("write");
        done += more;
    }
    close(file);
    if (renameat(dir, new, dir, name)) die("rename");
}

/* Returns the length, or -1 if somebody else has it. */
static ssize_t take(int dir, const char *name, char *buffer, size_t room) {
    char held[128];
    snprintf(held, sizeof held, "%s.1700000000000000.1.host-%d-abcdef-1", name, getpid());
    ssize_t target = 0;
    if (links && (target = readlinkat(dir, name, buffer, room)) < 0) die("read");
    if (renameat(dir, name, dir, held)) {
        if (errno == ENOENT) return -1;
        die("claim");
    }
    if (links) {
        if (unlinkat(dir, held, 0)) die("remove");
        return target;
    }
    int file = openat(dir, held, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (file < 0) die(held);
    ssize_t length = 0, more;
    while ((more = read(file, buffer + length, room - length)) > 0) {
        length += more;
        if ((size_t)length < 65536) break; /* a short body takes one read */
    }
    close(file);
    if (unlinkat(dir, held, 0)) die("remove");
    return length;
}

/* The visible names, sorted; one block of memory for all of them. */
static char **listing(int dir, size_t *count) {
    int copy = openat(dir, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *handle = fdopendir(copy);
    size_t room = 1024, used = 0;
    char **names = malloc(room * sizeof *names);
    struct dirent *entry;
    while ((entry = readdir(handle))) {
        if (entry->d_type != (links ? DT_LNK : DT_REG) || strspn(entry->d_name, "0123456789") != strlen(entry->d_name)) continue;
        if (used == room) names = realloc(names, (room *= 2) * sizeof *names);
        names[used++] = strdup(entry->d_name);
    }
    closedir(handle);
    qsort(names, used, sizeof *names, by_name);
    *count = used;
    return names;
}

static void report(const char *name, i64 spent, i64 took, i64 *each, size_t count) {
    qsort(each, count, sizeof *each, ascending);
    printf("\"%s\": {\"count\": %zu, \"cpu\": %.9f, \"wall\": %.9f, \"us\": [%.3f, %.3f, %.3f, %.3f]}", name, count,
           spent / 1e9, took / 1e9, each[count / 2] / 1e3, each[count * 9 / 10] / 1e3, each[count * 99 / 100] / 1e3,
           each[count - 1] / 1e3);
}

static void store(const char *path, i64 count, size_t size, i64 limit) {
    int dir = open_dir(path);
    char *body = malloc(size + 1), *buffer = malloc(size + 65537);
    i64 *each = malloc(count * sizeof *each);
    memset(body, 'x', size);
    i64 spent = cpu(), began = wall(), last = began;
    for (i64 n = 0; n < count; n++) {
        publish(dir, n, body, size);
        i64 now = wall();
        each[n] = now - last;
        last = now;
    }
    spent = cpu() - spent;
    printf("{");
    report("put", spent, last - began, each, count);
    size_t found;
    spent = cpu(), began = wall();
    char **names = listing(dir, &found);
    i64 listed = cpu() - spent, listed_wall = wall() - began, lost = 0;
    spent = cpu(), began = last = wall();
    for (i64 n = 0; n < limit; n++) {
        if ((size_t)n >= found || take(dir, names[n], buffer, size + 65536) != (ssize_t)size) lost++;
        i64 now = wall();
        each[n] = now - last;
        last = now;
    }
    spent = cpu() - spent;
    printf(", ");
    /* Of the one listing, the part of those that were taken. */
    report("get", spent + listed * limit / count, last - began + listed_wall * limit / count, each, limit);
    printf(", \"lost\": %lld, \"twice\": 0}\n", lost);
}

/* Work when a line says so, so that others can take turns; of each listing the part of those that are taken counts. */
static void turns(const char *path, size_t size) {
    int dir = open_dir(path);
    char *body = malloc(size + 1), *buffer = malloc(size + 65537), **names = NULL, word[8];
    i64 number = 0, count, listed = 0;
    size_t found = 0, next = 0;
    memset(body, 'x', size);
    puts("ready");
    fflush(stdout);
    while (scanf("%7s %lld", word, &count) == 2) {
        i64 spent = cpu();
        if (!strcmp(word, "put")) {
            for (i64 n = 0; n < count; n++) publish(dir, number++, body, size);
            spent = cpu() - spent;
        } else {
            if (!names) {
                names = listing(dir, &found);
                listed = cpu() - spent;
                spent = cpu();
            }
            for (i64 n = 0; n < count; n++)
                if (next >= found || take(dir, names[next++], buffer, size + 65536) != (ssize_t)size) die("lost");
            spent = cpu() - spent + listed * count / (i64)found;
        }
        printf("%.9f\n", spent / 1e9);
        fflush(stdout);
    }
}

static void wait_for_go(void) {
    puts("ready");
    fflush(stdout);
    if (getchar() == EOF) exit(1);
}

static void produce(const char *path, i64 first, i64 count, size_t size, i64 pause) {
    int dir = open_dir(path);
    char *body = malloc(size + 1);
    memset(body, 'x', size);
    wait_for_go();
    i64 spent = cpu(), began = wall();
    for (i64 n = 0; n < count; n++) {
        i64 due = began + n * pause, now = wall();
        if (pause && due > now) {
            struct timespec t = {(due - now) / 1000000000, (due - now) % 1000000000};
            nanosleep(&t, NULL);
        }
        publish(dir, first + n, body, size);
    }
    printf("{\"cpu\": %.9f, \"began\": %lld}\n", (cpu() - spent) / 1e9, began);
}

static void consume(const char *path, const char *done) {
    int dir = open_dir(path);
    size_t room = 1 << 20, used = 0, limit = 1024;
    char *buffer = malloc(room);
    i64 *got = malloc(2 * limit * sizeof *got), wasted = 0, last = 0;
    struct timespec short_nap = {0, 1000000};
    wait_for_go();
    i64 spent = cpu(), idle = 0;
    for (;;) {
        size_t found, before = used;
        char **names = listing(dir, &found);
        for (size_t n = 0; n < found; n++) {
            ssize_t length = take(dir, names[n], buffer, room);
            free(names[n]);
            if (length < 0) {
                wasted++;
                continue;
            }
            if (used == limit) got = realloc(got, 2 * (limit *= 2) * sizeof *got);
            last = wall();
            got[2 * used] = strtoll(buffer, NULL, 10);
            got[2 * used++ + 1] = last - strtoll(buffer + 13, NULL, 10);
        }
        free(names);
        if (used != before) {
            idle = 0;
            continue;
        }
        if (!idle) idle = wall();
        if (access(done, F_OK) == 0 && wall() - idle > 200000000) break;
        nanosleep(&short_nap, NULL);
    }
    printf("{\"cpu\": %.9f, \"wasted\": %lld, \"last\": %lld, \"got\": [", (cpu() - spent) / 1e9, wasted, last);
    for (size_t n = 0; n < used; n++) printf("%s[%lld, %lld]", n ? ", " : "", got[2 * n], got[2 * n + 1]);
    puts("]}");
}

static void list(const char *path) {
    int dir = open_dir(path);
    i64 spent = cpu(), began = wall();
    DIR *handle = fdopendir(dir);
    size_t count = 0;
    while (readdir(handle)) count++;
    printf("{\"cpu\": %.9f, \"wall\": %.9f, \"count\": %zu}\n", (cpu() - spent) / 1e9, (wall() - began) / 1e9, count);
}

int main(int argc, char **argv) {
    links = argc > 1 && !strcmp(argv[1], "links");
    if (argc == 6 && !strcmp(argv[1], "store")) store(argv[2], atoll(argv[3]), atoll(argv[4]), atoll(argv[5]));
    else if (argc == 4 && (links || !strcmp(argv[1], "files"))) turns(argv[2], atoll(argv[3]));
    else if (argc == 7 && !strcmp(argv[1], "produce"))
        produce(argv[2], atoll(argv[3]), atoll(argv[4]), atoll(argv[5]), atoll(argv[6]));
    else if (argc == 4 && !strcmp(argv[1], "consume")) consume(argv[2], argv[3]);
    else if (argc == 3 && !strcmp(argv[1], "list")) list(argv[2]);
    else return fputs("usage: see the head of floor.c\n", stderr), 2;
    return 0;
}
