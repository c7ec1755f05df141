/* A library for LD_PRELOAD that counts the durable calls of a process below one directory, and fails, cuts short or
 * kills at the n-th of them. It can also log every call that succeeded, with its data, in one order for all processes
 * that share the log. Inactive until `fault_arm`. Copies inside the kernel below the directory are refused, so that
 * every byte passes through a write. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <unistd.h>

enum kind { OPEN, WRITE, FSYNC, RENAME, LINK, MKDIR, UNLINK, RMDIR, TRUNCATE, UTIME, CHMOD, MARK };
enum action { COUNT, FAIL, FAIL_FROM_THEN_ON, KILL_BEFORE, KILL_AFTER, HALF };
enum step { PASS, REFUSE, CUT, DIE };

static struct {
    char root[PATH_MAX];
    size_t length;
    unsigned kinds;
    long nth;
    int action, error, log;
    long seen, injected;
} state = {.log = -1};
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

struct header {
    uint32_t kind, flags;
    int64_t offset;
    uint32_t path, other, data;
} __attribute__((packed));

struct call {
    enum kind kind;
    unsigned flags;
    int64_t offset;
    const char *path, *other;
    const void *data;
};

void fault_arm(const char *root, unsigned kinds, long nth, int action, int error, int log) {
    snprintf(state.root, sizeof state.root, "%s", root);
    state.kinds = kinds, state.nth = nth, state.action = action, state.error = error, state.log = log;
    state.seen = state.injected = 0;
    state.length = strlen(state.root);
}

void fault_disarm(void) { state.length = 0; }
long fault_seen(void) { return state.seen; }
long fault_injected(void) { return state.injected; }

static int below(const char *path) {
    return state.length && !strncmp(path, state.root, state.length) &&
           (path[state.length] == '/' || path[state.length] == 0);
}

static const char *path_of(int fd, char *out) {
    char link[64];
    if (!state.length) return NULL;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t size = readlink(link, out, PATH_MAX - 1);
    if (size < 0) return NULL;
    out[size] = 0;
    return below(out) ? out : NULL;
}

static const char *path_at(int dir, const char *path, char *out) {
    char base[PATH_MAX];
    if (!state.length || !path) return NULL;
    if (path[0] == '/' || dir == AT_FDCWD)
        snprintf(out, PATH_MAX, "%s", path);
    else if (path_of(dir, base))
        snprintf(out, PATH_MAX, "%.2000s/%.2000s", base, path);
    else
        return NULL;
    return below(out) ? out : NULL;
}

static void lock_log(short type) {
    struct flock lock = {.l_type = type, .l_whence = SEEK_SET};
    if (type == F_WRLCK) pthread_mutex_lock(&mutex);
    while (fcntl(state.log, F_SETLKW, &lock) < 0 && errno == EINTR) continue;
    if (type == F_UNLCK) pthread_mutex_unlock(&mutex);
}

static void die(void) {
    syscall(SYS_kill, getpid(), SIGKILL);
    for (;;) pause();
}

/* What to do with this call; takes the log's lock when there is one. */
static enum step enter(enum kind kind, const char *path) {
    if (!path) return PASS;
    enum step step = PASS;
    if (state.kinds >> kind & 1) {
        long n = __atomic_add_fetch(&state.seen, 1, __ATOMIC_SEQ_CST);
        int now = n == state.nth, later = n > state.nth && state.nth > 0;
        if ((now && state.action == FAIL) || ((now || later) && state.action == FAIL_FROM_THEN_ON) ||
            (later && state.action == HALF && kind == WRITE))
            step = REFUSE;
        else if (now && state.action == HALF)
            step = kind == WRITE ? CUT : REFUSE;
        else if (now && state.action == KILL_AFTER)
            step = DIE;
        else if (now && state.action == KILL_BEFORE)
            die();
        if (step != PASS) __atomic_add_fetch(&state.injected, 1, __ATOMIC_SEQ_CST);
    }
    if (step == REFUSE)
        errno = state.error;
    else if (state.log >= 0)
        lock_log(F_WRLCK);
    return step;
}

static void put(const void *data, size_t size) {
    for (const char *at = data; size > 0;) {
        long done = syscall(SYS_write, state.log, at, size);
        if (done < 0) die();
        at += done, size -= done;
    }
}

static void record(struct call call, size_t size) {
    struct header header = {call.kind, call.flags, call.offset, strlen(call.path),
                            call.other ? strlen(call.other) : 0, call.data ? size : 0};
    put(&header, sizeof header);
    put(call.path, header.path);
    put(call.other, header.other);
    put(call.data, header.data);
}

static long leave(enum step step, long result, struct call call) {
    int saved = errno;
    if (call.path && state.log >= 0) {
        if (result >= 0) record(call, result);
        lock_log(F_UNLCK);
    }
    if (step == DIE) die();
    errno = saved;
    return result;
}

void fault_mark(const char *text) {
    if (state.log < 0 || !state.length) return;
    lock_log(F_WRLCK);
    record((struct call){.kind = MARK, .path = text}, 0);
    lock_log(F_UNLCK);
}

/* Opening: only what may create or empty a file counts. */

static int opened(int dir, const char *path, int flags, mode_t mode) {
    char buffer[PATH_MAX];
    const char *there = flags & (O_CREAT | O_TRUNC) ? path_at(dir, path, buffer) : NULL;
    enum step step = enter(OPEN, there);
    if (step == REFUSE) return -1;
    long result = syscall(SYS_openat, dir, path, flags, mode);
    return leave(step, result, (struct call){.kind = OPEN, .flags = flags, .path = there});
}

#define MODE(last)                              \
    mode_t mode = 0;                            \
    if (flags & (O_CREAT | __O_TMPFILE)) {      \
        va_list list;                           \
        va_start(list, last);                   \
        mode = va_arg(list, mode_t);            \
        va_end(list);                           \
    }

int open(const char *path, int flags, ...) { MODE(flags) return opened(AT_FDCWD, path, flags, mode); }
int open64(const char *path, int flags, ...) { MODE(flags) return opened(AT_FDCWD, path, flags | O_LARGEFILE, mode); }
int openat(int dir, const char *path, int flags, ...) { MODE(flags) return opened(dir, path, flags, mode); }
int openat64(int dir, const char *path, int flags, ...) { MODE(flags) return opened(dir, path, flags | O_LARGEFILE, mode); }
int creat(const char *path, mode_t mode) { return opened(AT_FDCWD, path, O_CREAT | O_WRONLY | O_TRUNC, mode); }

/* Writing. `offset` -1: at the file's position. */

static ssize_t written(int fd, const void *data, size_t size, off_t offset) {
    char buffer[PATH_MAX];
    const char *path = path_of(fd, buffer);
    enum step step = enter(WRITE, path);
    if (step == REFUSE) return -1;
    if (step == CUT) size = size > 1 ? size / 2 : size;
    long done = offset < 0 ? syscall(SYS_write, fd, data, size) : syscall(SYS_pwrite64, fd, data, size, offset);
    if (path && offset < 0 && done >= 0) offset = lseek(fd, 0, SEEK_CUR) - done;
    return leave(step, done, (struct call){.kind = WRITE, .offset = offset, .path = path, .data = data});
}

ssize_t write(int fd, const void *data, size_t size) { return written(fd, data, size, -1); }
ssize_t pwrite(int fd, const void *data, size_t size, off_t offset) { return written(fd, data, size, offset); }
ssize_t pwrite64(int fd, const void *data, size_t size, off_t offset) { return written(fd, data, size, offset); }

ssize_t writev(int fd, const struct iovec *parts, int count) {
    char buffer[PATH_MAX];
    if (!path_of(fd, buffer)) return syscall(SYS_writev, fd, parts, count);
    for (int i = 0; i < count; i++) /* a short write is allowed: the first part that is not empty */
        if (parts[i].iov_len) return written(fd, parts[i].iov_base, parts[i].iov_len, -1);
    return 0;
}

ssize_t pwritev(int fd, const struct iovec *parts, int count, off_t offset) {
    char buffer[PATH_MAX];
    if (!path_of(fd, buffer)) return syscall(SYS_pwritev, fd, parts, count, (long)offset, 0L);
    for (int i = 0; i < count; i++)
        if (parts[i].iov_len) return written(fd, parts[i].iov_base, parts[i].iov_len, offset);
    return 0;
}

ssize_t pwritev64(int fd, const struct iovec *parts, int count, off_t offset) {
    return pwritev(fd, parts, count, offset);
}

ssize_t sendfile(int to, int from, off_t *offset, size_t size) {
    char buffer[PATH_MAX];
    if (path_of(to, buffer)) return errno = EINVAL, -1;
    return syscall(SYS_sendfile, to, from, offset, size);
}

ssize_t sendfile64(int to, int from, off_t *offset, size_t size) { return sendfile(to, from, offset, size); }

ssize_t copy_file_range(int from, off_t *at, int to, off_t *offset, size_t size, unsigned flags) {
    char buffer[PATH_MAX];
    if (path_of(to, buffer)) return errno = EINVAL, -1;
    return syscall(SYS_copy_file_range, from, at, to, offset, size, flags);
}

/* The rest: one path, or two. */

#define WITH(find, what, system_call, ...)                                   \
    char buffer[PATH_MAX];                                                   \
    const char *there = find;                                                \
    enum step step = enter(what, there);                                     \
    if (step == REFUSE) return -1;                                           \
    long result = system_call;                                               \
    return leave(step, result, (struct call){.kind = what, .path = there, __VA_ARGS__})

int fsync(int fd) { WITH(path_of(fd, buffer), FSYNC, syscall(SYS_fsync, fd)); }
int fdatasync(int fd) { WITH(path_of(fd, buffer), FSYNC, syscall(SYS_fdatasync, fd)); }

int renameat2(int from, const char *old, int to, const char *new, unsigned flags) {
    char second[PATH_MAX];
    const char *target = path_at(to, new, second);
    WITH(path_at(from, old, buffer), RENAME, syscall(SYS_renameat2, from, old, to, new, flags), .other = target);
}
int renameat(int from, const char *old, int to, const char *new) { return renameat2(from, old, to, new, 0); }
int rename(const char *old, const char *new) { return renameat2(AT_FDCWD, old, AT_FDCWD, new, 0); }

int linkat(int from, const char *old, int to, const char *new, int flags) {
    char second[PATH_MAX];
    const char *target = path_at(to, new, second);
    WITH(path_at(from, old, buffer), LINK, syscall(SYS_linkat, from, old, to, new, flags), .other = target);
}
int link(const char *old, const char *new) { return linkat(AT_FDCWD, old, AT_FDCWD, new, 0); }

int mkdirat(int dir, const char *path, mode_t mode) {
    WITH(path_at(dir, path, buffer), MKDIR, syscall(SYS_mkdirat, dir, path, mode));
}
int mkdir(const char *path, mode_t mode) { return mkdirat(AT_FDCWD, path, mode); }

int unlinkat(int dir, const char *path, int flags) {
    enum kind kind = flags & AT_REMOVEDIR ? RMDIR : UNLINK;
    WITH(path_at(dir, path, buffer), kind, syscall(SYS_unlinkat, dir, path, flags));
}
int unlink(const char *path) { return unlinkat(AT_FDCWD, path, 0); }
int rmdir(const char *path) { return unlinkat(AT_FDCWD, path, AT_REMOVEDIR); }

int ftruncate(int fd, off_t size) {
    WITH(path_of(fd, buffer), TRUNCATE, syscall(SYS_ftruncate, fd, size), .offset = size);
}
int ftruncate64(int fd, off_t size) { return ftruncate(fd, size); }
int truncate(const char *path, off_t size) {
    WITH(path_at(AT_FDCWD, path, buffer), TRUNCATE, syscall(SYS_truncate, path, size), .offset = size);
}
int truncate64(const char *path, off_t size) { return truncate(path, size); }

int utimensat(int dir, const char *path, const struct timespec times[2], int flags) {
    WITH(path_at(dir, path, buffer), UTIME, syscall(SYS_utimensat, dir, path, times, flags));
}
int futimens(int fd, const struct timespec times[2]) {
    WITH(path_of(fd, buffer), UTIME, syscall(SYS_utimensat, fd, NULL, times, 0));
}

int fchmodat(int dir, const char *path, mode_t mode, int flags) {
    (void)flags; /* the system call has none */
    WITH(path_at(dir, path, buffer), CHMOD, syscall(SYS_fchmodat, dir, path, mode), .flags = mode);
}
int chmod(const char *path, mode_t mode) { return fchmodat(AT_FDCWD, path, mode, 0); }
int fchmod(int fd, mode_t mode) {
    WITH(path_of(fd, buffer), CHMOD, syscall(SYS_fchmod, fd, mode), .flags = mode);
}
