/* What the sandbox's TaskProlog does for a task (slurmconf.task_prolog) without a process of its own, which costs Slurm
 * half of what the start of a task does. The argument is the sandbox's folder. */
#define _GNU_SOURCE
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <slurm/spank.h>

SPANK_PLUGIN(gpucluster_sandbox, 1)

static const char *variable(char **env, const char *name)
{
	size_t length = strlen(name);

	for (; *env != NULL; env++)
		if (strncmp(*env, name, length) == 0 && (*env)[length] == '=')
			return *env + length + 1;
	return NULL;
}

static int set_path(spank_t sp, const char *tools, const char *path)
{
	char *value;
	int rv;

	if (asprintf(&value, "%s:%s", tools, path != NULL ? path : "") < 0)
		return -1;
	rv = spank_setenv(sp, "PATH", value, 1) == ESPANK_SUCCESS ? 0 : -1;
	free(value);
	return rv;
}

/* The images of the user: those of the store's owner are in the store itself. */
static int set_store(spank_t sp, const char *node)
{
	char store[PATH_MAX];
	struct stat st;

	snprintf(store, sizeof(store), "%s/enroot", node);
	if (stat(store, &st) == 0 && st.st_uid != geteuid())
		snprintf(store, sizeof(store), "%s/enroot/.of-%u", node, (unsigned)geteuid());
	return spank_setenv(sp, "ENROOT_DATA_PATH", store, 1) == ESPANK_SUCCESS ? 0 : -1;
}

/* A node that hangs: its tasks wait for a process that `gpucluster sandbox heal` finds by its environment. */
static int hang(spank_t sp)
{
	char **env;
	int status;
	pid_t child;

	if (spank_get_item(sp, S_JOB_ENV, &env) != ESPANK_SUCCESS || (child = fork()) < 0)
		return -1;
	if (child == 0) {
		execve("/bin/sh", (char *const[]){ "sh", "-c", "exec sleep 86400", NULL }, env);
		_exit(127);
	}
	return waitpid(child, &status, 0) == child && status == 0 ? 0 : -1;
}

int slurm_spank_task_init(spank_t sp, int ac, char **av)
{
	char tools[PATH_MAX], node[PATH_MAX], fault[PATH_MAX];
	const char *name;
	char **env;

	if (ac != 1 || spank_get_item(sp, S_JOB_ENV, &env) != ESPANK_SUCCESS)
		return -1;
	name = variable(env, "SLURMD_NODENAME");
	if (snprintf(tools, sizeof(tools), "%s/simbin", av[0]) >= (int)sizeof(tools) || name == NULL ||
	    snprintf(node, sizeof(node), "%s/nodes/%s", av[0], name) >= (int)sizeof(node) ||
	    snprintf(fault, sizeof(fault), "%s/fault.hang", node) >= (int)sizeof(fault))
		return -1;
	if (set_path(sp, tools, variable(env, "PATH")) < 0 ||
	    spank_setenv(sp, "GPUCLUSTER_SANDBOX_NODE", node, 1) != ESPANK_SUCCESS || set_store(sp, node) < 0)
		return -1;
	return access(fault, F_OK) == 0 ? hang(sp) : 0;
}
