/* LD_PRELOAD: writes, syncs or reads of files below a directory fail with EIO while a control file says so (FLT-29).
 *
 * FAILING_WRITES_CONTROL names the control file; its content is "<what> <directory>", what being write, fsync or read, or hold:
 * syncs last until it says something else.
 * It is looked at before every call, so that a test can begin and end a fault while the process runs.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

static int fails(const char *what, int fd) {
    const char *control = getenv("FAILING_WRITES_CONTROL");
    char text[512], link[64], path[512];
    if (control == NULL) return 0;
    int saved = errno;
    int control_fd = syscall(SYS_openat, AT_FDCWD, control, O_RDONLY | O_CLOEXEC);
    if (control_fd < 0) { errno = saved; return 0; }
    ssize_t size = syscall(SYS_read, control_fd, text, sizeof text - 1);
    syscall(SYS_close, control_fd);
    errno = saved;
    if (size <= 0) return 0;
    text[size] = 0;
    size_t length = strlen(what);
    if (strncmp(text, what, length) != 0 || text[length] != ' ') return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t count = readlink(link, path, sizeof path - 1);
    errno = saved;
    if (count <= 0) return 0;
    path[count] = 0;
    const char *directory = text + length + 1;
    if (strncmp(path, directory, strlen(directory)) != 0) return 0;
    errno = EIO;
    return 1;
}

#define REAL(result, name, ...) result (*real)(__VA_ARGS__) = (result (*)(__VA_ARGS__))dlsym(RTLD_NEXT, name)

ssize_t write(int fd, const void *data, size_t size) {
    REAL(ssize_t, "write", int, const void *, size_t);
    return fails("write", fd) ? -1 : real(fd, data, size);
}

#define PWRITE(name) \
    ssize_t name(int fd, const void *data, size_t size, off_t at) { \
        REAL(ssize_t, #name, int, const void *, size_t, off_t); \
        return fails("write", fd) ? -1 : real(fd, data, size, at); \
    }
PWRITE(pwrite)
PWRITE(pwrite64)

#define PWRITEV(name) \
    ssize_t name(int fd, const struct iovec *parts, int count, off_t at) { \
        REAL(ssize_t, #name, int, const struct iovec *, int, off_t); \
        return fails("write", fd) ? -1 : real(fd, parts, count, at); \
    }
PWRITEV(pwritev)
PWRITEV(pwritev64)

#define PWRITEV2(name) \
    ssize_t name(int fd, const struct iovec *parts, int count, off_t at, int flags) { \
        REAL(ssize_t, #name, int, const struct iovec *, int, off_t, int); \
        return fails("write", fd) ? -1 : real(fd, parts, count, at, flags); \
    }
PWRITEV2(pwritev2)
PWRITEV2(pwritev64v2)

ssize_t read(int fd, void *data, size_t size) {
    REAL(ssize_t, "read", int, void *, size_t);
    return fails("read", fd) ? -1 : real(fd, data, size);
}

#define PREAD(name) \
    ssize_t name(int fd, void *data, size_t size, off_t at) { \
        REAL(ssize_t, #name, int, void *, size_t, off_t); \
        return fails("read", fd) ? -1 : real(fd, data, size, at); \
    }
PREAD(pread)
PREAD(pread64)

#define PREADV2(name) \
    ssize_t name(int fd, const struct iovec *parts, int count, off_t at, int flags) { \
        REAL(ssize_t, #name, int, const struct iovec *, int, off_t, int); \
        return fails("read", fd) ? -1 : real(fd, parts, count, at, flags); \
    }
PREADV2(preadv2)
PREADV2(preadv64v2)

#define SYNC(name) \
    int name(int fd) { \
        REAL(int, #name, int); \
        while (fails("hold", fd)) usleep(1000); \
        return fails("fsync", fd) ? -1 : real(fd); \
    }
SYNC(fsync)
SYNC(fdatasync)
