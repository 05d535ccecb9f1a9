/* A power cut for one directory tree: LD_PRELOAD this and POWERCUT_SHADOW holds only what was synced.
 *
 *   shadow/root         key of the root directory
 *   shadow/inodes/KEY   content of a regular file at its last sync
 *   shadow/dirs/KEY     listing of a directory at its last sync
 *   shadow/names/KEY    where a file was found when it was synced (for the lenient model)
 *   shadow/lock         taken for every change; holds the number of the last one
 *   shadow/cut          exists once the power is off: whoever syncs or renames afterwards dies
 *
 * A sync this library does not see (io_uring, raw syscalls, static programs) counts as no sync:
 * a test may fail without cause, never pass without cause. What it sees and cannot model aborts. */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#ifndef AT_HANDLE_FID
#define AT_HANDLE_FID 0x200
#endif
#define CHUNK (256 * 1024)
#define BLOCK 4096

typedef struct {
    char text[112];
} inode_key;

static char root[PATH_MAX], shadow[PATH_MAX];
static size_t root_len; /* 0: not watching */
static useconds_t delay_us;

/* Guarded by the lock file, which excludes threads too: each holder opens it anew. */
static char now_bytes[CHUNK] __attribute__((aligned(BLOCK)));
static char old_bytes[CHUNK] __attribute__((aligned(BLOCK)));

static _Noreturn void die(const char *what, const char *which) {
    dprintf(2, "powercut: %s: %s: %s\n", what, which, strerror(errno));
    abort();
}

__attribute__((constructor)) static void start(void) {
    const char *watched = getenv("POWERCUT_ROOT"), *kept = getenv("POWERCUT_SHADOW");
    if (!watched || !kept) return;
    if (strlen(watched) >= PATH_MAX || strlen(kept) >= PATH_MAX - 256) die("path too long", watched);
    const char *delay = getenv("POWERCUT_DELAY_US");
    delay_us = delay ? (useconds_t)strtoul(delay, NULL, 10) : 0;
    strcpy(root, watched);
    strcpy(shadow, kept);
    root_len = strlen(root);
}

static void in_shadow(char out[PATH_MAX], const char *folder, const char *name) {
    if (snprintf(out, PATH_MAX, "%s/%s%s", shadow, folder, name) >= PATH_MAX) die("path too long", name);
}

static int open_shadow(const char *folder, const char *name, int flags) {
    char path[PATH_MAX];
    in_shadow(path, folder, name);
    int fd = open(path, flags | O_CLOEXEC, 0600);
    if (fd < 0) die("open", path);
    return fd;
}

static void write_at(int fd, const char *bytes, size_t count, off_t offset) {
    while (count > 0) {
        ssize_t done = syscall(SYS_pwrite64, fd, bytes, count, offset);
        if (done < 0 && errno == EINTR) continue;
        if (done < 0) die("write to", shadow);
        bytes += done, offset += done, count -= (size_t)done;
    }
}

static size_t read_at(int fd, char *bytes, size_t count, off_t offset) {
    size_t have = 0;
    while (have < count) {
        ssize_t got = pread(fd, bytes + have, count - have, offset + (off_t)have);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) die("read", "synced file");
        if (got == 0) break;
        have += (size_t)got;
    }
    return have;
}

/* One lock for all: two syncs of one file must not publish in the wrong order, and a reader of the
 * shadow must see one moment of it. */
static int lock(void) {
    char cut[PATH_MAX];
    int fd = open_shadow("", "lock", O_RDWR | O_CREAT);
    while (flock(fd, LOCK_EX) != 0)
        if (errno != EINTR) die("lock", shadow);
    in_shadow(cut, "", "cut");
    if (access(cut, F_OK) == 0) kill(getpid(), SIGKILL);
    return fd;
}

static void unlock(int fd) {
    /* Explicit: a child forked meanwhile shares the descriptor and would keep the lock. */
    flock(fd, LOCK_UN);
    close(fd);
}

static unsigned long long next_number(int lock_fd) {
    unsigned long long number = 0;
    read_at(lock_fd, (char *)&number, sizeof number, 0);
    number++;
    write_at(lock_fd, (const char *)&number, sizeof number, 0);
    return number;
}

/* An inode number comes back at once after an unlink, and birth times may be coarse; the
 * file handle also holds the inode's generation. Needs no open of the file: closing any descriptor
 * of a file drops the POSIX locks its process holds on it, and SQLite lives by those. */
static bool identify(int fd, inode_key *key, struct statx *info) {
    struct {
        struct file_handle head;
        unsigned char bytes[MAX_HANDLE_SZ];
    } handle = {.head = {.handle_bytes = MAX_HANDLE_SZ}};
    int mount;
    if (statx(fd, "", AT_EMPTY_PATH, STATX_BASIC_STATS | STATX_BTIME, info) != 0) return false;
    bool told = name_to_handle_at(fd, "", &handle.head, &mount, AT_EMPTY_PATH) == 0;
    if (!told) {
        handle.head.handle_bytes = MAX_HANDLE_SZ;
        told = name_to_handle_at(fd, "", &handle.head, &mount, AT_EMPTY_PATH | AT_HANDLE_FID) == 0;
    }
    bool born = info->stx_mask & STATX_BTIME;
    if (!told && !born) die("this filesystem cannot tell a reused inode from its predecessor", root);
    uint64_t hash = 14695981039346656037u;
    for (unsigned i = 0; told && i < handle.head.handle_bytes; i++)
        hash = (hash ^ handle.bytes[i]) * 1099511628211u;
    snprintf(key->text, sizeof key->text, "%x.%x-%llx-%llx.%x-%016llx", info->stx_dev_major,
             info->stx_dev_minor, (unsigned long long)info->stx_ino,
             born ? (unsigned long long)info->stx_btime.tv_sec : 0, born ? info->stx_btime.tv_nsec : 0,
             (unsigned long long)hash);
    return true;
}

/* O_PATH: opens nothing, so its close drops no locks; and name and key belong together. */
static int find(int dir, const char *name, inode_key *key, struct statx *info) {
    int fd = openat(dir, name, O_PATH | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0) return -1;
    if (identify(fd, key, info)) return fd;
    close(fd);
    return -1;
}

static bool watched_path(int fd, char path[PATH_MAX]) {
    char link[64];
    if (!root_len) return false;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, PATH_MAX - 1);
    if (length < (ssize_t)root_len) return false;
    path[length] = 0;
    return memcmp(path, root, root_len) == 0 && (path[root_len] == 0 || path[root_len] == '/');
}

/* Copies the blocks that differ, in place. A kill half way leaves some of the unsynced blocks on
 * the disk and some not, which is what a power cut during an fsync does. */
static void copy_changes(int from, int to, off_t size) {
    off_t offset = 0;
    if (ftruncate(to, size) != 0) die("truncate in", shadow);
    for (;;) {
        size_t now = read_at(from, now_bytes, CHUNK, offset);
        size_t old = read_at(to, old_bytes, CHUNK, offset);
        size_t start = 0, end = 0; /* a run of differing blocks */
        for (size_t at = 0; at < now; at += BLOCK) {
            size_t length = now - at < BLOCK ? now - at : BLOCK;
            if (at + length <= old && memcmp(now_bytes + at, old_bytes + at, length) == 0) continue;
            if (at != end) {
                write_at(to, now_bytes + start, end - start, offset + (off_t)start);
                start = at;
            }
            end = at + length;
        }
        write_at(to, now_bytes + start, end - start, offset + (off_t)start);
        offset += (off_t)now;
        if (now < CHUNK) break;
    }
    if (ftruncate(to, offset) != 0) die("truncate in", shadow);
}

static int open_again(int fd) {
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    int again = open(link, O_RDONLY | O_CLOEXEC);
    if (again < 0) die("reopen for reading", link);
    return again;
}

static void close_unless_locked(int fd) {
    struct flock any = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    /* Closing would drop this process's own POSIX locks on the file: better to leak a descriptor. */
    if (fcntl(fd, F_OFD_GETLK, &any) == 0 && any.l_type == F_UNLCK) close(fd);
}

static void save_file(int fd) {
    inode_key key;
    struct statx info;
    if (!identify(fd, &key, &info)) die("identify", "synced file");
    int flags = fcntl(fd, F_GETFL);
    bool readable = (flags & O_ACCMODE) != O_WRONLY && !(flags & O_PATH);
    int from = readable ? fd : open_again(fd);
    int to = open_shadow("inodes/", key.text, O_RDWR | O_CREAT);
    copy_changes(from, to, (off_t)info.stx_size);
    fchmod(to, (info.stx_mode & 07777) | 0600);
    close(to);
    if (from != fd) close_unless_locked(from);
}

static char kind_of(unsigned mode) {
    return S_ISREG(mode) ? 'f' : S_ISDIR(mode) ? 'd' : S_ISLNK(mode) ? 'l' : 'o';
}

/* kind, mode, key, name, symlink target: each ends with a NUL. */
static void put_entry(FILE *out, int dir, const char *name) {
    inode_key key;
    struct statx info;
    char target[PATH_MAX] = "";
    int fd = find(dir, name, &key, &info);
    if (fd < 0) return; /* removed since it was listed */
    if (S_ISLNK(info.stx_mode) && readlinkat(fd, "", target, sizeof target - 1) < 0) die("readlink", name);
    fprintf(out, "%c%c%o%c%s%c%s%c%s%c", kind_of(info.stx_mode), 0, info.stx_mode & 07777u, 0, key.text, 0,
            name, 0, target, 0);
    close(fd);
}

static DIR *open_listing(int fd) {
    int again = openat(fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *dir = again < 0 ? NULL : fdopendir(again);
    if (!dir) die("list", "synced directory");
    return dir;
}

static bool is_dots(const char *name) { return !strcmp(name, ".") || !strcmp(name, ".."); }

static void save_listing(int fd, unsigned long long number) {
    inode_key key;
    struct statx info;
    char part[PATH_MAX], whole[PATH_MAX];
    if (!identify(fd, &key, &info)) die("identify", "synced directory");
    FILE *out = fdopen(open_shadow("", "part", O_WRONLY | O_CREAT | O_TRUNC), "w");
    if (!out) die("open", shadow);
    fprintf(out, "%llu%c", number, 0);
    DIR *dir = open_listing(fd);
    for (struct dirent *entry; (entry = readdir(dir));)
        if (!is_dots(entry->d_name)) put_entry(out, fd, entry->d_name);
    closedir(dir);
    if (fclose(out) != 0) die("write to", shadow);
    in_shadow(part, "", "part");
    in_shadow(whole, "dirs/", key.text);
    if (syscall(SYS_renameat2, AT_FDCWD, part, AT_FDCWD, whole, 0) != 0) die("rename", whole);
}

/* Where the synced thing and the directories above it are: number, parent's key, then an entry. */
static void save_names(char path[PATH_MAX], unsigned long long number) {
    while (strlen(path) > root_len) {
        inode_key key, parent_key;
        struct statx info, parent_info;
        char *slash = strrchr(path, '/');
        *slash = 0;
        int parent = find(AT_FDCWD, path, &parent_key, &parent_info);
        int child = parent < 0 ? -1 : find(parent, slash + 1, &key, &info);
        if (child >= 0) {
            char record[PATH_MAX];
            int length = snprintf(record, sizeof record, "%llu%c%s%c%c%c%o%c%s%c%s%c%c", number, 0,
                                  parent_key.text, 0, kind_of(info.stx_mode), 0, info.stx_mode & 07777u, 0,
                                  key.text, 0, slash + 1, 0, 0);
            int out = open_shadow("names/", key.text, O_WRONLY | O_CREAT);
            write_at(out, record, (size_t)length, 0);
            close(out);
            close(child);
        }
        if (parent >= 0) close(parent);
    }
}

static void save_tree(int fd, unsigned long long number) {
    DIR *dir = open_listing(fd);
    for (struct dirent *entry; (entry = readdir(dir));) {
        if (is_dots(entry->d_name)) continue;
        struct stat info;
        if (fstatat(fd, entry->d_name, &info, AT_SYMLINK_NOFOLLOW) != 0) continue;
        if (!S_ISREG(info.st_mode) && !S_ISDIR(info.st_mode)) continue;
        int child = openat(fd, entry->d_name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
        if (child < 0 && errno == ENOENT) continue;
        if (child < 0) die("open", entry->d_name);
        if (S_ISDIR(info.st_mode)) save_tree(child, number);
        else save_file(child);
        close_unless_locked(child);
    }
    closedir(dir);
    save_listing(fd, number);
}

static void save_everything(void) {
    inode_key key;
    struct statx info;
    int guard = lock();
    int top = open(root, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (top < 0 || !identify(top, &key, &info)) die("open", root);
    save_tree(top, next_number(guard));
    int out = open_shadow("", "root", O_WRONLY | O_CREAT);
    write_at(out, key.text, strlen(key.text), 0);
    close(out);
    close(top);
    unlock(guard);
}

/* True when the descriptor is ours to sync; the kernel need not: the shadow is the disk. */
static bool saved(int fd) {
    char path[PATH_MAX];
    struct stat info;
    int before = errno;
    bool ours = watched_path(fd, path) && fstat(fd, &info) == 0 && !(fcntl(fd, F_GETFL) & O_PATH) &&
                (S_ISREG(info.st_mode) || S_ISDIR(info.st_mode));
    if (ours) {
        /* Before the copy: a program that answers without waiting for its sync is caught here. */
        if (delay_us) usleep(delay_us);
        int guard = lock();
        unsigned long long number = next_number(guard);
        if (S_ISDIR(info.st_mode)) save_listing(fd, number);
        else save_file(fd);
        save_names(path, number);
        unlock(guard);
    }
    errno = before;
    return ours;
}

int fsync(int fd) { return saved(fd) ? 0 : (int)syscall(SYS_fsync, fd); }

int fdatasync(int fd) { return saved(fd) ? 0 : (int)syscall(SYS_fdatasync, fd); }

/* sync_file_range is left alone: it promises nothing about size, names or the disk's cache. */

void sync(void) {
    if (root_len) save_everything();
    else syscall(SYS_sync);
}

int syncfs(int fd) {
    struct stat ours, theirs;
    bool watched = root_len && stat(root, &ours) == 0 && fstat(fd, &theirs) == 0;
    if (!watched || ours.st_dev != theirs.st_dev) return (int)syscall(SYS_syncfs, fd);
    save_everything();
    return 0;
}

int msync(void *address, size_t length, int flags) {
    FILE *maps = root_len && (flags & MS_SYNC) ? fopen("/proc/self/maps", "re") : NULL;
    char line[PATH_MAX + 128];
    while (maps && fgets(line, sizeof line, maps)) {
        unsigned long low, high, at = (unsigned long)address;
        char *path = strchr(line, '/');
        if (!path || sscanf(line, "%lx-%lx", &low, &high) != 2) continue;
        if (high <= at || at + length <= low || strncmp(path, root, root_len) != 0) continue;
        if (path[root_len] == '/') errno = ENOTSUP, die("msync(MS_SYNC) is not modelled, use fsync", path);
    }
    if (maps) fclose(maps);
    return (int)syscall(SYS_msync, address, length, flags);
}

/* O_SYNC contains O_DSYNC. F_GETFL on each write knows about dup, fork and exec; a table would not. */
static ssize_t written(int fd, ssize_t count, bool asked) {
    int before = errno;
    if (root_len && count > 0 && (asked || (fcntl(fd, F_GETFL) & O_DSYNC))) saved(fd);
    errno = before;
    return count;
}

ssize_t write(int fd, const void *bytes, size_t count) {
    return written(fd, syscall(SYS_write, fd, bytes, count), false);
}

ssize_t pwrite(int fd, const void *bytes, size_t count, off_t offset) {
    return written(fd, syscall(SYS_pwrite64, fd, bytes, count, offset), false);
}

ssize_t pwrite64(int fd, const void *bytes, size_t count, off64_t offset) {
    return written(fd, syscall(SYS_pwrite64, fd, bytes, count, offset), false);
}

ssize_t writev(int fd, const struct iovec *parts, int count) {
    return written(fd, syscall(SYS_writev, fd, parts, count), false);
}

ssize_t pwritev(int fd, const struct iovec *parts, int count, off_t offset) {
    return written(fd, syscall(SYS_pwritev, fd, parts, count, offset, 0), false);
}

ssize_t pwritev64(int fd, const struct iovec *parts, int count, off64_t offset) {
    return written(fd, syscall(SYS_pwritev, fd, parts, count, offset, 0), false);
}

ssize_t pwritev2(int fd, const struct iovec *parts, int count, off_t offset, int flags) {
    ssize_t done = syscall(SYS_pwritev2, fd, parts, count, offset, 0, flags);
    return written(fd, done, flags & (RWF_DSYNC | RWF_SYNC));
}

ssize_t pwritev64v2(int fd, const struct iovec *parts, int count, off64_t offset, int flags) {
    ssize_t done = syscall(SYS_pwritev2, fd, parts, count, offset, 0, flags);
    return written(fd, done, flags & (RWF_DSYNC | RWF_SYNC));
}

/* A listing taken while a file moves from one name to another could miss both; so moves wait. */
static int moved(long number, int from_dir, const char *from, int to_dir, const char *to, int flags) {
    int guard = root_len ? lock() : -1;
    int result = (int)syscall(number, from_dir, from, to_dir, to, flags);
    int error = errno;
    if (guard >= 0) unlock(guard);
    errno = error;
    return result;
}

int renameat2(int from_dir, const char *from, int to_dir, const char *to, unsigned flags) {
    return moved(SYS_renameat2, from_dir, from, to_dir, to, (int)flags);
}

int renameat(int from_dir, const char *from, int to_dir, const char *to) {
    return moved(SYS_renameat2, from_dir, from, to_dir, to, 0);
}

int rename(const char *from, const char *to) {
    return moved(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0);
}

int linkat(int from_dir, const char *from, int to_dir, const char *to, int flags) {
    return moved(SYS_linkat, from_dir, from, to_dir, to, flags);
}

int link(const char *from, const char *to) { return moved(SYS_linkat, AT_FDCWD, from, AT_FDCWD, to, 0); }

int unlinkat(int dir, const char *name, int flags) {
    int guard = root_len ? lock() : -1;
    int result = (int)syscall(SYS_unlinkat, dir, name, flags);
    int error = errno;
    if (guard >= 0) unlock(guard);
    errno = error;
    return result;
}

int unlink(const char *name) { return unlinkat(AT_FDCWD, name, 0); }
