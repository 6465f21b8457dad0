/* A container: a root filesystem in its own namespaces, which one stopped process holds until all tasks have joined. */
#define _GNU_SOURCE
#include <err.h>
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "pyxis.h"

#define SHARED (-2)

static const char *root;

static void write_file(const char *path, const char *text)
{
	int fd = open(path, O_WRONLY | O_CLOEXEC);

	if (fd < 0 || write(fd, text, strlen(text)) < 0)
		err(1, "[ERROR] %s", path);
	close(fd);
}

static void map_ids(const struct start *start)
{
	char line[64];
	bool as_root = start->options->remap_root == 1;

	write_file("/proc/self/setgroups", "deny");
	snprintf(line, sizeof(line), "%u %u 1\n", as_root ? 0 : start->uid, start->uid);
	write_file("/proc/self/uid_map", line);
	snprintf(line, sizeof(line), "%u %u 1\n", as_root ? 0 : start->gid, start->gid);
	write_file("/proc/self/gid_map", line);
}

static void enter_namespaces(const struct start *start)
{
	int flags = CLONE_NEWNS | (start->options->unshare_net ? CLONE_NEWNET : 0) |
		    (start->options->unshare_ipc ? CLONE_NEWIPC : 0) | (start->options->unshare_uts ? CLONE_NEWUTS : 0);

	/* slurmstepd has changed its user from root, and may then not access its own files in /proc */
	(void)prctl(PR_SET_DUMPABLE, 1);
	if (unshare(CLONE_NEWUSER | flags) == 0)
		map_ids(start);
	else if (unshare(flags) < 0) /* root can do without a user namespace, if the kernel allows none */
		err(1, "[ERROR] unshare");
	if (mount("none", "/", NULL, MS_REC | MS_SLAVE, NULL) < 0)
		err(1, "[ERROR] mount: /");
}

/* Create the folders of a path below the container's root; the last part too if `folder`. */
static void make_path(const char *path, bool folder)
{
	char copy[PATH_MAX];
	int fd;

	snprintf(copy, sizeof(copy), "%s", path);
	for (char *slash = strchr(copy + strlen(root) + 1, '/'); slash != NULL; slash = strchr(slash + 1, '/')) {
		*slash = '\0';
		(void)mkdir(copy, 0755);
		*slash = '/';
	}
	if (folder)
		(void)mkdir(copy, 0755);
	else if ((fd = open(copy, O_CREAT | O_WRONLY | O_CLOEXEC, 0644)) >= 0)
		close(fd);
}

static void target_of(char *path, size_t size, const char *target)
{
	if (snprintf(path, size, "%s/%s", root, target) >= (int)size)
		errx(1, "[ERROR] Path too long: %s", target);
}

/* A user namespace may remount only with the existing flags, hence all combinations. */
static void restrict_mount(const char *path, unsigned long flags)
{
	static const unsigned long locked[] = { MS_NOSUID | MS_NODEV, MS_NOSUID | MS_NODEV | MS_NOEXEC, MS_NOSUID, 0 };

	for (size_t i = 0; i < sizeof(locked) / sizeof(*locked); i++)
		if (mount(NULL, path, NULL, MS_REMOUNT | MS_BIND | flags | locked[i], NULL) == 0)
			return;
	err(1, "[ERROR] remount: %s", path);
}

static void bind(const char *source, const char *target, const char *flags)
{
	char path[PATH_MAX];
	struct stat st;

	target_of(path, sizeof(path), target);
	if (stat(source, &st) < 0)
		err(1, "[ERROR] %s", source);
	make_path(path, S_ISDIR(st.st_mode));
	if (mount(source, path, NULL, MS_BIND | MS_REC, NULL) < 0)
		err(1, "[ERROR] mount: %s at %s", source, target);
	for (const char *flag = flags; flag != NULL && *flag != '\0'; flag = strchr(flag, '+') ? strchr(flag, '+') + 1 : NULL)
		if (strncmp(flag, "ro", 2) == 0 && (flag[2] == '\0' || flag[2] == '+'))
			restrict_mount(path, MS_RDONLY);
}

static void tmpfs(const char *target)
{
	char path[PATH_MAX];

	target_of(path, sizeof(path), target);
	make_path(path, true);
	if (mount("tmpfs", path, "tmpfs", MS_NOSUID | MS_NODEV, "mode=1777") < 0)
		err(1, "[ERROR] mount: tmpfs at %s", target);
}

static void unmount(const char *target)
{
	char path[PATH_MAX];

	target_of(path, sizeof(path), target);
	if (umount2(path, MNT_DETACH) < 0)
		err(1, "[ERROR] umount: %s", target);
}

static void mount_all(const struct start *start)
{
	static const char *const host[] = { "/proc", "/sys", "/dev", "/etc/hosts", "/etc/hostname", "/etc/resolv.conf", "/etc/localtime", NULL };
	const struct options *given = start->options;

	for (int i = 0; host[i] != NULL; i++)
		if (access(host[i], F_OK) == 0)
			bind(host[i], host[i], "");
	tmpfs("/tmp");
	if (given->mount_home == 1)
		bind(start->home, given->remap_root == 1 ? "/root" : start->home, "");
	for (size_t i = 0; i + 1 < start->mounts.len; i += 2)
		bind(start->mounts.items[i], start->mounts.items[i + 1], "ro");
	for (size_t i = 0; i < given->n_mounts; i++) {
		if (strcmp(given->mounts[i].source, "tmpfs") == 0)
			tmpfs(given->mounts[i].target);
		else if (strcmp(given->mounts[i].source, "umount") == 0)
			unmount(given->mounts[i].target);
		else
			bind(given->mounts[i].source, given->mounts[i].target, given->mounts[i].flags);
	}
}

static void switch_root(void)
{
	if (chdir(root) < 0 || syscall(SYS_pivot_root, ".", ".") < 0 || umount2(".", MNT_DETACH) < 0 || chdir("/") < 0)
		err(1, "[ERROR] pivot_root: %s", root);
}

void container_become(const struct start *start)
{
	static char hold[] = "kill -STOP $$ ; exit 0";
	char *plain[] = { "sh", "-c", hold, NULL }, *through[] = { "sh", "/etc/rc", "sh", "-c", hold, NULL };

	root = start->rootfs;
	umask(022);
	enter_namespaces(start);
	if (mount(root, root, NULL, MS_BIND | MS_REC, NULL) < 0)
		err(1, "[ERROR] mount: %s", root);
	mount_all(start);
	if (start->options->writable != 1)
		restrict_mount(root, MS_RDONLY);
	switch_root();
	execve("/bin/sh", access("/etc/rc", R_OK) == 0 ? through : plain, start->env.items);
	err(1, "[ERROR] /bin/sh");
}

/* Return a handle on a namespace of the container; SHARED if it is that of the host, -1 if the container has ended. */
static int own_namespace(pid_t pid, const char *kind)
{
	char container[64], self[64];
	struct stat a, b;
	int fd;

	snprintf(container, sizeof(container), "/proc/%d/ns/%s", pid, kind);
	snprintf(self, sizeof(self), "/proc/self/ns/%s", kind);
	if (stat(container, &a) == 0 && stat(self, &b) == 0 && a.st_ino == b.st_ino)
		return SHARED;
	fd = open(container, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		slurm_error("pyxis: unable to open %s namespace file: %s", kind, strerror(errno));
	return fd;
}

int container_join(pid_t pid)
{
	const struct {
		const char *kind;
		int flag;
	} kinds[] = { { "user", CLONE_NEWUSER }, { "mnt", CLONE_NEWNS }, { "ipc", CLONE_NEWIPC }, { "uts", CLONE_NEWUTS }, { "net", CLONE_NEWNET } };
	int fds[sizeof(kinds) / sizeof(*kinds)];

	/* open all first: the first setns changes /proc */
	for (size_t i = 0; i < sizeof(kinds) / sizeof(*kinds); i++)
		if ((fds[i] = own_namespace(pid, kinds[i].kind)) == -1)
			return -1; /* a task never runs on the host instead */
	for (size_t i = 0; i < sizeof(kinds) / sizeof(*kinds); i++) {
		if (fds[i] >= 0 && setns(fds[i], kinds[i].flag) < 0) {
			slurm_error("pyxis: couldn't join %s namespace: %s", kinds[i].kind, strerror(errno));
			return -1;
		}
		if (fds[i] >= 0)
			close(fds[i]);
	}
	return 0;
}
