/* Preloaded into a process: lets the n-th call on a file below a root fail, write short, or end the process;
 * and writes down which file each call was on, if asked.
 *
 * All processes of a run share one block of memory, a file named by TORTURE_CONTROL, so that "n-th" counts the calls
 * of parent and workers together. Built and set up by preload.py, which says what the fields mean.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { OPEN = 1, CREATE = 2, READ = 4, WRITE = 8, SYNC = 16, RENAME = 32, LINK = 64, MKDIR = 128, UNLINK = 256 };
enum { NOTHING = 0, FAIL = 1, SHORT = 2, SIGNAL_BEFORE = 3, SIGNAL_AFTER = 4, TORN = 5 };

struct control {
    int64_t counter, at, fired;
    int32_t action, value, kinds, sticky;
    char root[512], filter[256], list[512];
};

static struct control *control;

__attribute__((constructor)) static void attach(void) {
    const char *name = getenv("TORTURE_CONTROL");
    int fd = name ? (int)syscall(SYS_openat, AT_FDCWD, name, O_RDWR | O_CLOEXEC, 0) : -1;
    if (fd < 0) return;
    void *block = mmap(NULL, sizeof *control, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    syscall(SYS_close, fd);
    if (block != MAP_FAILED) control = block;
}

static int is_ours(const char *path) {
    size_t length = strlen(control->root);
    return length && strncmp(path, control->root, length) == 0 && (path[length] == '/' || path[length] == 0) &&
           (!control->filter[0] || strstr(path + length, control->filter));
}

static void note(int kind, const char *path, const char *source);

static int fd_is_ours(int fd, int kind) {
    char link[64], path[4096];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = syscall(SYS_readlinkat, AT_FDCWD, link, path, sizeof path - 1);
    if (length <= 0) return 0;
    path[length] = 0;
    if (!is_ours(path)) return 0;
    note(kind, path, "");
    return 1;
}

static int at_is_ours(int folder, const char *path) {
    char link[64], whole[8192];
    if (path[0] == '/') return is_ours(path);
    if (folder == AT_FDCWD) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", folder);
    ssize_t length = syscall(SYS_readlinkat, AT_FDCWD, link, whole, 4000);
    if (length <= 0) return 0;
    snprintf(whole + length, sizeof whole - length, "/%s", path);
    return is_ours(whole);
}

/* Adds a line to the list of calls: kind, file, and for a rename or link the file that gets another name. */
static void note(int kind, const char *path, const char *source) {
    char line[8192];
    if (!control || !control->list[0] || !(control->kinds & kind) || !is_ours(path)) return;
    int fd = (int)syscall(SYS_openat, AT_FDCWD, control->list, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
    int length = snprintf(line, sizeof line, "%d\t%s\t%s\n", kind, path, source);
    if (fd < 0) return;
    syscall(SYS_write, fd, line, length);
    syscall(SYS_close, fd);
}

/* Returns what to do about a call; an error is already in errno. */
static int judge(int kind, int ours) {
    if (!control || !ours || !(control->kinds & kind)) return NOTHING;
    int64_t number = __atomic_add_fetch(&control->counter, 1, __ATOMIC_SEQ_CST);
    if (number != control->at && !(control->sticky && control->at && number > control->at)) return NOTHING;
    __atomic_add_fetch(&control->fired, 1, __ATOMIC_SEQ_CST);
    if (control->action == SIGNAL_BEFORE) syscall(SYS_kill, getpid(), control->value);
    if (control->action == FAIL || (control->action == SHORT && kind != WRITE)) {
        errno = control->action == FAIL ? control->value : ENOSPC;
        return FAIL;
    }
    return control->action;
}

static void afterwards(int verdict) {
    int kept = errno;
    if (verdict == SIGNAL_AFTER || verdict == TORN) syscall(SYS_kill, getpid(), control->value);
    errno = kept;
}

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

#define JUDGED(kind, ours, call)              \
    int verdict = judge(kind, (ours));        \
    if (verdict == FAIL) return -1;           \
    __typeof__(call) result = call;           \
    afterwards(verdict);                      \
    return result;

#define OPENER(name)                                                               \
    int name(const char *path, int flags, ...) {                                   \
        va_list words;                                                             \
        va_start(words, flags);                                                    \
        mode_t mode = va_arg(words, mode_t);                                       \
        va_end(words);                                                             \
        int ours = control && at_is_ours(AT_FDCWD, path);                          \
        JUDGED(flags & O_CREAT ? CREATE : OPEN, ours, REAL(name)(path, flags, mode)) \
    }
#define OPENER_AT(name)                                                                  \
    int name(int folder, const char *path, int flags, ...) {                             \
        va_list words;                                                                   \
        va_start(words, flags);                                                          \
        mode_t mode = va_arg(words, mode_t);                                             \
        va_end(words);                                                                   \
        int ours = control && at_is_ours(folder, path);                                  \
        JUDGED(flags & O_CREAT ? CREATE : OPEN, ours, REAL(name)(folder, path, flags, mode)) \
    }
OPENER(open)
OPENER(open64)
OPENER_AT(openat)
OPENER_AT(openat64)

ssize_t write(int fd, const void *bytes, size_t length) {
    int verdict = judge(WRITE, control && fd > 2 && fd_is_ours(fd, WRITE));
    if (verdict == FAIL) return -1;
    if ((verdict == SHORT || verdict == TORN) && length > 1) length /= 2;
    ssize_t result = REAL(write)(fd, bytes, length);
    afterwards(verdict);
    return result;
}

ssize_t read(int fd, void *bytes, size_t length) {
    JUDGED(READ, control && fd > 2 && fd_is_ours(fd, READ), REAL(read)(fd, bytes, length))
}
ssize_t pread64(int fd, void *bytes, size_t length, off64_t offset) {
    JUDGED(READ, control && fd > 2 && fd_is_ours(fd, READ), REAL(pread64)(fd, bytes, length, offset))
}
ssize_t pwrite64(int fd, const void *bytes, size_t length, off64_t offset) {
    JUDGED(WRITE, control && fd > 2 && fd_is_ours(fd, WRITE), REAL(pwrite64)(fd, bytes, length, offset))
}
int fsync(int fd) { JUDGED(SYNC, control && fd_is_ours(fd, SYNC), REAL(fsync)(fd)) }
int fdatasync(int fd) { JUDGED(SYNC, control && fd_is_ours(fd, SYNC), REAL(fdatasync)(fd)) }
int rename(const char *a, const char *b) {
    note(RENAME, b, a);
    JUDGED(RENAME, control && at_is_ours(AT_FDCWD, b), REAL(rename)(a, b))
}
int renameat(int x, const char *a, int y, const char *b) {
    JUDGED(RENAME, control && at_is_ours(y, b), REAL(renameat)(x, a, y, b))
}
int link(const char *a, const char *b) {
    note(LINK, b, a);
    JUDGED(LINK, control && at_is_ours(AT_FDCWD, b), REAL(link)(a, b))
}
int linkat(int x, const char *a, int y, const char *b, int flags) {
    JUDGED(LINK, control && at_is_ours(y, b), REAL(linkat)(x, a, y, b, flags))
}
int mkdir(const char *path, mode_t mode) { JUDGED(MKDIR, control && at_is_ours(AT_FDCWD, path), REAL(mkdir)(path, mode)) }
int mkdirat(int folder, const char *path, mode_t mode) {
    JUDGED(MKDIR, control && at_is_ours(folder, path), REAL(mkdirat)(folder, path, mode))
}
int unlink(const char *path) { JUDGED(UNLINK, control && at_is_ours(AT_FDCWD, path), REAL(unlink)(path)) }
int unlinkat(int folder, const char *path, int flags) {
    JUDGED(UNLINK, control && at_is_ours(folder, path), REAL(unlinkat)(folder, path, flags))
}
