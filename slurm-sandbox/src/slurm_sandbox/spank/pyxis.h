/* Options of a containerised step, and its container. Every string is malloc'd, or NULL. */
#ifndef SLURM_SANDBOX_PYXIS_H
#define SLURM_SANDBOX_PYXIS_H

#include <limits.h>
#include <stdbool.h>
#include <sys/types.h>

#include <slurm/spank.h>

#define VERSION "0.24.0+sandbox"

struct list {
	char **items;
	size_t len;
};

struct mount {
	char *source, *target, *flags;
};

struct options {
	char *image, *workdir, *name, *name_mode, *save;
	struct mount *mounts;
	size_t n_mounts;
	struct list env;
	int mount_home, remap_root, entrypoint, entrypoint_log, writable; /* -1: not given */
	bool unshare_net, unshare_ipc, unshare_uts;
};

/* The arguments of the container's first process. */
struct start {
	const char *rootfs;
	const struct options *options;
	struct list env; /* NAME=VALUE */
	struct list mounts; /* SOURCE TARGET pairs, in turn */
	const char *home;
	uid_t uid;
	gid_t gid;
};

extern struct options options;

int options_register(spank_t sp);
void options_from_environment(spank_t sp);
bool options_enabled(void);
int truth(const char *text);

int list_add(struct list *list, const char *item);
bool list_has(const struct list *list, const char *item);

/* Does not return: the process becomes the container's first one, stopped, or exits with a line on stderr. */
void container_become(const struct start *start) __attribute__((noreturn));
int container_join(pid_t pid);

#endif
