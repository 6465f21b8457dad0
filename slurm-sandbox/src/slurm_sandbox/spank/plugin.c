/* The SPANK plugin: options at submission, a container around every task on the node.
 * The first `enroot` on slurmd's PATH stores images and names. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "pyxis.h"

SPANK_PLUGIN(pyxis, 1)

/* Shared by the tasks of a step on one node. */
struct shared {
	pthread_mutex_t mutex;
	unsigned int entered, joined, ended;
	pid_t first, namespaces; /* -1: none */
};

static struct {
	bool scope_job, run_entrypoint;
	bool enabled, reuse, temporary, refused;
	uid_t uid;
	gid_t gid;
	uint32_t job, step, local_tasks, all_tasks;
	char name[PATH_MAX], cwd[PATH_MAX];
	char **env;
	int log;
	pid_t running;
	struct shared *shared;
} ctx = { .log = -1 };

static int configure(int ac, char **av)
{
	for (int i = 0; i < ac; i++) {
		if (strcmp(av[i], "container_scope=job") == 0)
			ctx.scope_job = true;
		else if (strcmp(av[i], "container_scope=global") == 0)
			ctx.scope_job = false;
		else if (strncmp(av[i], "execute_entrypoint=", 19) == 0)
			ctx.run_entrypoint = truth(av[i] + 19) == 1;
		else {
			slurm_error("pyxis: unknown configuration option: %s", av[i]);
			return -1;
		}
	}
	return 0;
}

int slurm_spank_init(spank_t sp, int ac, char **av)
{
	spank_context_t where = spank_context();

	if (configure(ac, av) < 0)
		return -1;
	if (where == S_CTX_SLURMD)
		slurm_info("pyxis: version v" VERSION);
	if (where == S_CTX_LOCAL || where == S_CTX_ALLOCATOR || where == S_CTX_REMOTE)
		return options_register(sp);
	return 0;
}

int slurm_spank_init_post_opt(spank_t sp, int ac, char **av)
{
	if (spank_context() == S_CTX_LOCAL)
		(void)options_enabled();
	if (spank_context() != S_CTX_REMOTE)
		return 0;
	options_from_environment(sp);
	ctx.enabled = options_enabled();
	if (!ctx.enabled)
		return 0;
	if (spank_get_item(sp, S_JOB_UID, &ctx.uid) != ESPANK_SUCCESS ||
	    spank_get_item(sp, S_JOB_GID, &ctx.gid) != ESPANK_SUCCESS ||
	    spank_get_item(sp, S_JOB_ID, &ctx.job) != ESPANK_SUCCESS ||
	    spank_get_item(sp, S_JOB_STEPID, &ctx.step) != ESPANK_SUCCESS ||
	    spank_get_item(sp, S_JOB_LOCAL_TASK_COUNT, &ctx.local_tasks) != ESPANK_SUCCESS ||
	    spank_get_item(sp, S_JOB_TOTAL_TASK_COUNT, &ctx.all_tasks) != ESPANK_SUCCESS) {
		slurm_error("pyxis: couldn't get the job's identity");
		return -1;
	}
	(void)spank_getenv(sp, "PWD", ctx.cwd, sizeof(ctx.cwd));
	return 0;
}

/* -- the tool ---------------------------------------------------------------------------------------------- */

static void become_user(void)
{
	/* if slurmstepd runs as the user (user_init), the groups are the user's already */
	if (geteuid() == 0 && ctx.uid != 0 && setgroups(0, NULL) < 0)
		_exit(1);
	if (setregid(ctx.gid, ctx.gid) < 0 || setreuid(ctx.uid, ctx.uid) < 0)
		_exit(1);
}

/* The job's environment, with the daemon's PATH: the user's exports must not select the programs. */
static char **tool_environment(void)
{
	static struct list env;
	char path[PATH_MAX];

	for (size_t i = 0; i < env.len; i++)
		free(env.items[i]);
	env.len = 0;
	snprintf(path, sizeof(path), "PATH=%s", getenv("PATH") != NULL ? getenv("PATH") : "/usr/bin:/bin:/usr/sbin:/sbin");
	(void)list_add(&env, path);
	for (char **entry = ctx.env; entry != NULL && *entry != NULL; entry++)
		if (strncmp(*entry, "PATH=", 5) != 0 && strncmp(*entry, "LD_", 3) != 0)
			(void)list_add(&env, *entry);
	return env.items;
}

/* Run the tool with its messages in the log; return its exit status. `out`: the file of its output, -1 for the log. */
static int run_tool(int out, bool complain, char *const argv[])
{
	int status;
	pid_t child;

	if (ctx.log >= 0)
		close(ctx.log);
	ctx.log = memfd_create("enroot-log", MFD_CLOEXEC);
	child = fork();
	if (child == 0) {
		dup2(open("/dev/null", O_RDONLY), STDIN_FILENO);
		dup2(out >= 0 ? out : ctx.log, STDOUT_FILENO);
		dup2(ctx.log, STDERR_FILENO);
		become_user();
		execvpe("enroot", argv, tool_environment());
		dprintf(STDERR_FILENO, "[ERROR] enroot: %s\n", strerror(errno));
		_exit(127);
	}
	if (child < 0 || waitpid(child, &status, 0) < 0) {
		slurm_error("pyxis: could not wait for child %d: %s", child, strerror(errno));
		return -1;
	}
	if (WIFEXITED(status) && WEXITSTATUS(status) == 0)
		return 0;
	if (complain && WIFSIGNALED(status))
		slurm_error("pyxis: child %d terminated with signal %d", child, WTERMSIG(status));
	else if (complain)
		slurm_error("pyxis: child %d failed with error code: %d", child, WEXITSTATUS(status));
	return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static void print_log(void)
{
	FILE *log;
	char *line = NULL;
	size_t size = 0;

	if (ctx.log < 0 || lseek(ctx.log, 0, SEEK_SET) < 0 || (log = fdopen(dup(ctx.log), "r")) == NULL)
		return;
	slurm_error("pyxis: printing enroot log file:");
	while (getline(&line, &size, log) > 0) {
		line[strcspn(line, "\n")] = '\0';
		slurm_error("pyxis:     %s", line);
	}
	free(line);
	fclose(log);
}

/* Call `each` with every line that the tool prints. */
static int read_tool(char *const argv[], bool complain, void (*each)(char *, void *), void *data)
{
	int out = memfd_create("enroot-out", MFD_CLOEXEC), rv;
	char *line = NULL;
	size_t size = 0;
	FILE *file;

	rv = run_tool(out, complain, argv);
	if (lseek(out, 0, SEEK_SET) < 0 || (file = fdopen(out, "r")) == NULL)
		return -1;
	while (getline(&line, &size, file) > 0) {
		line[strcspn(line, "\n")] = '\0';
		each(line, data);
	}
	free(line);
	fclose(file);
	return rv;
}

/* -- before the tasks -------------------------------------------------------------------------------------- */

static struct shared *share(void)
{
	struct shared *made = mmap(NULL, sizeof(*made), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	pthread_mutexattr_t attributes;

	if (made == MAP_FAILED)
		return NULL;
	pthread_mutexattr_init(&attributes);
	pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
	pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
	pthread_mutex_init(&made->mutex, &attributes);
	made->first = made->namespaces = -1;
	return made;
}

static void take_line(char *line, void *data)
{
	snprintf(data, PATH_MAX, "%s", line);
}

/* Find a named container: the tool prints `absent`, `stopped` or the id of a process in it. */
static int find_named(void)
{
	char state[PATH_MAX] = "", *mode = options.name_mode;

	if (read_tool((char *const[]){ "enroot", "state", ctx.name, NULL }, true, take_line, state) != 0) {
		slurm_error("pyxis: couldn't get list of containers");
		print_log();
		return -1;
	}
	ctx.running = (pid_t)atoi(state);
	ctx.reuse = strcmp(state, "absent") != 0;
	if (strcmp(mode, "create") == 0 && ctx.reuse) {
		slurm_error("pyxis: error: \"create\" flag was passed to --container-name but the container already exists");
		return -1;
	}
	if (strcmp(mode, "exec") == 0 && ctx.running <= 0) {
		slurm_error("pyxis: error: \"exec\" flag was passed to --container-name but the container is not running");
		return -1;
	}
	if (strcmp(mode, "no_exec") == 0)
		ctx.running = 0;
	if (!ctx.reuse && options.image == NULL) {
		slurm_error("pyxis: error: a container with name \"%s\" does not exist, and --container-image is not set", ctx.name);
		return -1;
	}
	if (ctx.running > 0 && options.n_mounts > 0) {
		slurm_spank_log("pyxis: ignoring --container-mounts when attaching to a running container");
		options.n_mounts = 0;
	}
	return 0;
}

/* Slurm does not report an error here to srun: task_init reports it. */
int slurm_spank_user_init(spank_t sp, int ac, char **av)
{
	char prefix[32] = "pyxis_";

	if (!ctx.enabled)
		return 0;
	ctx.shared = share();
	ctx.refused = ctx.shared == NULL || spank_get_item(sp, S_JOB_ENV, &ctx.env) != ESPANK_SUCCESS;
	if (ctx.scope_job)
		snprintf(prefix, sizeof(prefix), "pyxis_%u_", ctx.job);
	ctx.temporary = options.name == NULL;
	if (ctx.temporary)
		snprintf(ctx.name, sizeof(ctx.name), "%s%u.%u", prefix, ctx.job, ctx.step);
	else {
		snprintf(ctx.name, sizeof(ctx.name), "%s%s", prefix, options.name);
		ctx.refused = ctx.refused || find_named() < 0;
	}
	return 0;
}

/* -- the first task makes the container -------------------------------------------------------------------- */

static int create(void)
{
	bool is_file = options.image[0] == '/' || options.image[0] == '.';

	if (!is_file) {
		if (ctx.all_tasks <= 1)
			slurm_spank_log("pyxis: importing docker image: %s", options.image);
		if (run_tool(-1, true, (char *const[]){ "enroot", "load", "-n", ctx.name, options.image, NULL }) != 0) {
			slurm_error("pyxis: failed to import docker image: %s", options.image);
			print_log();
			return -1;
		}
		slurm_spank_log("pyxis: imported docker image: %s", options.image);
		return 0;
	}
	if (run_tool(-1, true, (char *const[]){ "enroot", "create", "-n", ctx.name, options.image, NULL }) == 0)
		return 0;
	slurm_error("pyxis: failed to create container filesystem for image: %s", options.image);
	print_log();
	return -1;
}

/* The tool prints the sources that this node lacks: virtual nodes of one host share its files. */
static int check_mounts(void)
{
	struct list argv = { 0 };
	char missing[PATH_MAX] = "";

	(void)list_add(&argv, "enroot");
	(void)list_add(&argv, "missing");
	for (size_t i = 0; i < options.n_mounts; i++)
		if (options.mounts[i].source[0] == '/')
			(void)list_add(&argv, options.mounts[i].source);
	if (argv.len > 2)
		(void)read_tool(argv.items, true, take_line, missing);
	if (*missing == '\0')
		return 0;
	slurm_error("pyxis: --container-mounts: source path does not exist: %s", missing);
	slurm_error("pyxis: couldn't create enroot start configuration script");
	return -1;
}

static bool with_entrypoint(void)
{
	return options.entrypoint == 1 || (options.entrypoint == -1 && ctx.run_entrypoint);
}

struct prepared {
	char rootfs[PATH_MAX];
	struct list env, mounts;
};

/* Lines of `enroot prepare`: R rootfs, E NAME=VALUE, M SOURCE TARGET. */
static void take_prepared(char *line, void *data)
{
	struct prepared *prepared = data;
	char *target;

	if (strncmp(line, "R ", 2) == 0)
		snprintf(prepared->rootfs, sizeof(prepared->rootfs), "%s", line + 2);
	else if (strncmp(line, "E ", 2) == 0)
		(void)list_add(&prepared->env, line + 2);
	else if (strncmp(line, "M ", 2) == 0 && (target = strchr(line + 2, ' ')) != NULL) {
		*target++ = '\0';
		(void)list_add(&prepared->mounts, line + 2);
		(void)list_add(&prepared->mounts, target);
	}
}

/* Read the image's environment and what the hooks add to it. */
static int prepare(struct prepared *prepared)
{
	struct list argv = { 0 };

	(void)list_add(&argv, "enroot");
	(void)list_add(&argv, "prepare");
	(void)list_add(&argv, ctx.name);
	(void)list_add(&argv, with_entrypoint() ? "entrypoint" : "plain");
	for (size_t i = 0; i < options.env.len; i++)
		(void)list_add(&argv, options.env.items[i]);
	return read_tool(argv.items, false, take_prepared, prepared);
}

static const char *job_variable(const char *name)
{
	size_t length = strlen(name);

	for (char **entry = ctx.env; entry != NULL && *entry != NULL; entry++)
		if (strncmp(*entry, name, length) == 0 && (*entry)[length] == '=')
			return *entry + length + 1;
	return NULL;
}

static pid_t hold(const struct prepared *prepared)
{
	const char *home = job_variable("HOME");
	struct start start = {
		.rootfs = prepared->rootfs, .options = &options, .env = prepared->env, .mounts = prepared->mounts,
		.home = home != NULL ? home : "/root", .uid = ctx.uid, .gid = ctx.gid,
	};
	pid_t pid = fork();

	if (pid == 0) {
		dup2(open("/dev/null", O_RDONLY), STDIN_FILENO);
		dup2(ctx.log, STDOUT_FILENO);
		dup2(ctx.log, STDERR_FILENO);
		become_user();
		container_become(&start);
	}
	return pid;
}

/* Let a later step find the running container by its name. */
static void announce(pid_t pid)
{
	char link[64], inode[64] = "";

	snprintf(link, sizeof(link), "/proc/%d/ns/mnt", pid);
	if (!ctx.temporary && readlink(link, inode, sizeof(inode) - 1) > 0)
		(void)run_tool(-1, true, (char *const[]){ "enroot", "started", ctx.name, inode, NULL });
}

/* Start the process that holds the container; it stops itself when its root is ready. */
static pid_t start(void)
{
	struct prepared prepared = { 0 };
	int status = 0, rc;
	pid_t pid = -1;

	if (check_mounts() < 0)
		return -1;
	rc = prepare(&prepared);
	if (rc == 0)
		pid = hold(&prepared);
	if (rc == 0 && (pid < 0 || waitpid(pid, &status, WUNTRACED) < 0))
		rc = -1;
	else if (rc == 0 && !WIFSTOPPED(status))
		rc = WIFEXITED(status) ? WEXITSTATUS(status) : 128;
	if (rc == 0 && WIFSTOPPED(status)) {
		if (with_entrypoint() && options.entrypoint_log == 1)
			print_log();
		announce(pid);
		return pid;
	}
	if (rc != 0)
		slurm_error("pyxis: container start failed with error code: %d", rc);
	else
		slurm_error("pyxis: container exited too soon");
	if (with_entrypoint())
		slurm_error("pyxis: if the image has an unusual entrypoint, try using --no-container-entrypoint");
	print_log();
	return -1;
}

static int start_once(void)
{
	struct shared *shared = ctx.shared;
	int rc = pthread_mutex_lock(&shared->mutex), rv = -1;

	if (rc == EOWNERDEAD)
		pthread_mutex_consistent(&shared->mutex);
	else if (rc != 0)
		return -1;
	if (++shared->entered == 1) {
		if (!ctx.reuse && create() < 0)
			goto end;
		shared->first = start();
		shared->namespaces = ctx.running > 0 ? ctx.running : shared->first;
	}
	if (shared->first > 0)
		rv = 0;
	else
		slurm_error("pyxis: container was not started successfully by another task");
end:
	pthread_mutex_unlock(&shared->mutex);
	return rv;
}

/* -- every task joins it ----------------------------------------------------------------------------------- */

static int import_environment(spank_t sp, pid_t pid)
{
	static const char *const foreign[] = { "LANG", "LANGUAGE", "LC_ALL", NULL };
	char path[64], *entry = NULL, *value;
	size_t size = 0;
	FILE *file;

	for (int i = 0; foreign[i] != NULL; i++)
		if (!list_has(&options.env, foreign[i]))
			(void)spank_unsetenv(sp, foreign[i]);
	snprintf(path, sizeof(path), "/proc/%d/environ", pid);
	if ((file = fopen(path, "re")) == NULL) {
		slurm_error("pyxis: couldn't read %s", path);
		return -1;
	}
	while (getdelim(&entry, &size, '\0', file) > 0)
		if ((value = strchr(entry, '=')) != NULL) {
			*value++ = '\0';
			(void)spank_setenv(sp, entry, value, !list_has(&options.env, entry));
		}
	free(entry);
	fclose(file);
	return 0;
}

/* Like Pyxis, set PyTorch's ranks, with or without Enroot's hook. */
static void set_ranks(spank_t sp)
{
	char value[PATH_MAX];

	if (spank_getenv(sp, "PYTORCH_VERSION", value, sizeof(value)) != ESPANK_SUCCESS)
		return;
	if (spank_getenv(sp, "SLURM_PROCID", value, sizeof(value)) == ESPANK_SUCCESS)
		(void)spank_setenv(sp, "RANK", value, 1);
	if (spank_getenv(sp, "SLURM_LOCALID", value, sizeof(value)) == ESPANK_SUCCESS)
		(void)spank_setenv(sp, "LOCAL_RANK", value, 1);
}

int slurm_spank_task_init(spank_t sp, int ac, char **av)
{
	char link[64], cwd[PATH_MAX] = "/";

	if (!ctx.enabled)
		return 0;
	if (ctx.refused || spank_get_item(sp, S_JOB_ENV, &ctx.env) != ESPANK_SUCCESS || start_once() < 0)
		return -1;
	snprintf(link, sizeof(link), "/proc/%d/cwd", ctx.shared->first);
	if (readlink(link, cwd, sizeof(cwd) - 1) < 0)
		slurm_error("pyxis: couldn't read container cwd: %s", strerror(errno));
	if (import_environment(sp, ctx.shared->first) < 0 || container_join(ctx.shared->namespaces) < 0)
		return -1;
	set_ranks(sp);
	if (chdir(options.workdir != NULL ? options.workdir : cwd) < 0) {
		slurm_error("pyxis: couldn't chdir to %s: %s", options.workdir != NULL ? options.workdir : cwd, strerror(errno));
		return -1;
	}
	if (__atomic_add_fetch(&ctx.shared->joined, 1, __ATOMIC_SEQ_CST) == ctx.local_tasks)
		(void)kill(ctx.shared->first, SIGCONT); /* all tasks have joined and hold the namespaces */
	return 0;
}

/* -- after the last task ----------------------------------------------------------------------------------- */

/* The process that held the container may not have run since: a next step would find the container running. */
static void await_end(pid_t pid)
{
	char link[64], target[64];

	snprintf(link, sizeof(link), "/proc/%d/ns/mnt", pid);
	for (int i = 0; i < 500 && readlink(link, target, sizeof(target)) > 0; i++)
		usleep(10000);
}

static int save(void)
{
	char path[2 * PATH_MAX];

	if (options.save == NULL || ctx.shared->joined != ctx.local_tasks)
		return 0;
	snprintf(path, sizeof(path), "%s%s%s", options.save[0] == '/' ? "" : ctx.cwd, options.save[0] == '/' ? "" : "/", options.save);
	if (run_tool(-1, true, (char *const[]){ "enroot", "export", "-f", "-o", path, ctx.name, NULL }) != 0) {
		print_log();
		slurm_error("pyxis: failed to export container %s to %s", ctx.name, options.save);
		return -1;
	}
	slurm_spank_log("pyxis: exported container %s to %s", ctx.name, options.save);
	return 0;
}

int slurm_spank_task_exit(spank_t sp, int ac, char **av)
{
	int rv;

	if (!ctx.enabled || ctx.shared == NULL)
		return 0;
	if (__atomic_add_fetch(&ctx.shared->ended, 1, __ATOMIC_SEQ_CST) != ctx.local_tasks)
		return 0;
	if (!ctx.temporary && ctx.shared->joined == ctx.local_tasks)
		await_end(ctx.shared->first);
	if (spank_get_item(sp, S_JOB_ENV, &ctx.env) != ESPANK_SUCCESS) /* Slurm has moved it since */
		return -1;
	rv = save();
	if (ctx.temporary && run_tool(-1, true, (char *const[]){ "enroot", "remove", "-f", ctx.name, NULL }) != 0)
		slurm_info("pyxis: failed to remove container filesystem: %s", ctx.name);
	return rv;
}
