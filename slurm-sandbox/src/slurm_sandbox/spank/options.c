/* The options of srun, sbatch and salloc, their defaults from PYXIS_CONTAINER_*, and their validation. */
#include <stdlib.h>
#include <string.h>

#include "pyxis.h"

struct options options = {
	.mount_home = -1, .remap_root = -1, .entrypoint = -1, .entrypoint_log = -1, .writable = -1,
};

int list_add(struct list *list, const char *item)
{
	char **grown = realloc(list->items, (list->len + 2) * sizeof(*grown));

	if (grown == NULL)
		return -1;
	list->items = grown;
	if ((grown[list->len] = strdup(item)) == NULL)
		return -1;
	grown[++list->len] = NULL;
	return 0;
}

bool list_has(const struct list *list, const char *item)
{
	for (size_t i = 0; i < list->len; i++)
		if (strcmp(list->items[i], item) == 0)
			return true;
	return false;
}

int truth(const char *text)
{
	static const char *const yes[] = { "1", "true", "yes", "y", NULL }, *const no[] = { "0", "false", "no", "n", NULL };

	for (int i = 0; yes[i] != NULL; i++) {
		if (strcmp(text, yes[i]) == 0)
			return 1;
		if (strcmp(text, no[i]) == 0)
			return 0;
	}
	return -1;
}

/* Slurm may pass one value twice (salloc, then srun); two different values are an error. */
static int take(char **slot, const char *flag, const char *value)
{
	if (value == NULL || *value == '\0') {
		slurm_error("pyxis: --%s: argument required", flag);
		return -1;
	}
	if (*slot != NULL) {
		if (strcmp(*slot, value) == 0)
			return 0;
		slurm_error("pyxis: --%s specified multiple times", flag);
		return -1;
	}
	return (*slot = strdup(value)) == NULL ? -1 : 0;
}

static int choose(int *slot, int value, const char *on, const char *off)
{
	if (*slot != -1 && *slot != value) {
		slurm_error("pyxis: both --%s and --%s were specified", on, off);
		return -1;
	}
	*slot = value;
	return 0;
}

static int on_image(int val, const char *value, int remote)
{
	return take(&options.image, "container-image", value);
}

static int on_workdir(int val, const char *value, int remote)
{
	return take(&options.workdir, "container-workdir", value);
}

static int on_save(int val, const char *value, int remote)
{
	if (value != NULL && *value != '\0' && value[strlen(value) - 1] == '/') {
		slurm_error("pyxis: --container-save: target is a directory");
		return -1;
	}
	return take(&options.save, "container-save", value);
}

static int on_name(int val, const char *value, int remote)
{
	static const char *const modes[] = { "auto", "create", "exec", "no_exec", NULL };
	char *copy = value != NULL ? strdup(value) : NULL, *mode = copy != NULL ? strchr(copy, ':') : NULL;
	int rv = -1;

	if (mode != NULL)
		*mode++ = '\0';
	if (mode == NULL || *mode == '\0')
		mode = "auto";
	if (copy != NULL && *value != '\0' && *copy == '\0') {
		slurm_error("pyxis: --container-name: empty name");
		goto end;
	}
	for (int i = 0; modes[i] != NULL; i++)
		if (strcmp(mode, modes[i]) == 0) {
			rv = take(&options.name, "container-name", copy);
			if (rv == 0 && options.name_mode == NULL)
				options.name_mode = strdup(mode);
			goto end;
		}
	slurm_error("pyxis: --container-name: flag must be \"auto\", \"create\", \"exec\" or \"no_exec\"");
end:
	free(copy);
	return rv;
}

static int add_mount(const char *source, const char *target, const char *flags)
{
	struct mount *grown, added;

	if (*source != '/' && *source != '.' && strcmp(source, "tmpfs") != 0 && strcmp(source, "umount") != 0) {
		slurm_error("pyxis: mount source must be a relative path, an absolute path, \"tmpfs\" or \"umount\"");
		return -1;
	}
	if (*target != '/' && *target != '.') {
		slurm_error("pyxis: mount target must be a relative path or an absolute path");
		return -1;
	}
	for (size_t i = 0; i < options.n_mounts; i++)
		if (strcmp(options.mounts[i].source, source) == 0 && strcmp(options.mounts[i].target, target) == 0)
			return 0; /* given by salloc already */
	added = (struct mount){ strdup(source), strdup(target), strdup(flags) };
	grown = realloc(options.mounts, (options.n_mounts + 1) * sizeof(*grown));
	if (grown == NULL)
		return -1;
	options.mounts = grown;
	options.mounts[options.n_mounts++] = added;
	return 0;
}

static int one_mount(char *text)
{
	char *rest = text, *source, *target, *flags;

	source = strsep(&rest, ":");
	target = rest != NULL ? strsep(&rest, ":") : source;
	flags = rest != NULL ? rest : "";
	if (*source == '\0' || *target == '\0') {
		slurm_error("pyxis: --container-mounts: invalid format: %s", text);
		return -1;
	}
	if (add_mount(source, target, flags) == 0)
		return 0;
	slurm_error("pyxis: could not add mount entry: %s:%s", source, target);
	return -1;
}

/* Call `each` for every part between commas. */
static int split(const char *flag, const char *value, int (*each)(char *))
{
	char *copy, *rest, *part;
	int rv = 0;

	if (value == NULL || *value == '\0') {
		slurm_error("pyxis: --%s: argument required", flag);
		return -1;
	}
	copy = rest = strdup(value);
	while (rv == 0 && (part = strsep(&rest, ",")) != NULL)
		rv = each(part);
	free(copy);
	return rv;
}

static int on_mounts(int val, const char *value, int remote)
{
	return split("container-mounts", value, one_mount);
}

static int one_env(char *name)
{
	if (*name == '\0') {
		slurm_error("pyxis: --container-env: invalid format: empty name");
		return -1;
	}
	return list_has(&options.env, name) ? 0 : list_add(&options.env, name);
}

static int on_env(int val, const char *value, int remote)
{
	return split("container-env", value, one_env);
}

static int one_namespace(char *name)
{
	if (strcmp(name, "net") == 0)
		options.unshare_net = true;
	else if (strcmp(name, "ipc") == 0)
		options.unshare_ipc = true;
	else if (strcmp(name, "uts") == 0)
		options.unshare_uts = true;
	else {
		slurm_error("pyxis: --container-unshare: unknown namespace '%s'", name);
		return -1;
	}
	return 0;
}

static int on_unshare(int val, const char *value, int remote)
{
	return split("container-unshare", value, one_namespace);
}

static int on_mount_home(int val, const char *value, int remote)
{
	return choose(&options.mount_home, val, "container-mount-home", "no-container-mount-home");
}

static int on_remap_root(int val, const char *value, int remote)
{
	return choose(&options.remap_root, val, "container-remap-root", "no-container-remap-root");
}

static int on_entrypoint(int val, const char *value, int remote)
{
	return choose(&options.entrypoint, val, "container-entrypoint", "no-container-entrypoint");
}

static int on_entrypoint_log(int val, const char *value, int remote)
{
	options.entrypoint_log = val;
	return 0;
}

static int on_writable(int val, const char *value, int remote)
{
	return choose(&options.writable, val, "container-writable", "container-readonly");
}

/* name, argument, help, takes an argument, value, callback */
static struct spank_option table[] = {
	{ "container-image", "[USER@][REGISTRY#]IMAGE[:TAG]|PATH", "[pyxis] image: a docker URI or a squashfs file", 1, 0, on_image },
	{ "container-mounts", "SRC:DST[:FLAGS][,...]", "[pyxis] bind mounts; flags are separated by +", 1, 0, on_mounts },
	{ "container-workdir", "PATH", "[pyxis] working directory inside the container", 1, 0, on_workdir },
	{ "container-name", "NAME[:MODE]", "[pyxis] name to keep the container under, or to find it by", 1, 0, on_name },
	{ "container-save", "PATH", "[pyxis] save the container to a squashfs file", 1, 0, on_save },
	{ "container-mount-home", NULL, "[pyxis] bind mount the home directory", 0, 1, on_mount_home },
	{ "no-container-mount-home", NULL, "[pyxis] do not bind mount the home directory", 0, 0, on_mount_home },
	{ "container-remap-root", NULL, "[pyxis] be root inside the container", 0, 1, on_remap_root },
	{ "no-container-remap-root", NULL, "[pyxis] do not be root inside the container", 0, 0, on_remap_root },
	{ "container-entrypoint", NULL, "[pyxis] run the image's entrypoint", 0, 1, on_entrypoint },
	{ "no-container-entrypoint", NULL, "[pyxis] do not run the image's entrypoint", 0, 0, on_entrypoint },
	{ "container-entrypoint-log", NULL, "[pyxis] print the output of the entrypoint", 0, 1, on_entrypoint_log },
	{ "container-writable", NULL, "[pyxis] make the container's root writable", 0, 1, on_writable },
	{ "container-readonly", NULL, "[pyxis] make the container's root read-only", 0, 0, on_writable },
	{ "container-env", "NAME[,NAME...]", "[pyxis] variables whose value outside wins over the image's", 1, 0, on_env },
	{ "container-unshare", "NS[,NS...]", "[pyxis] new namespaces: net, ipc, uts", 1, 0, on_unshare },
	SPANK_OPTIONS_TABLE_END
};

int options_register(spank_t sp)
{
	for (int i = 0; table[i].name != NULL; i++)
		if (spank_option_register(sp, &table[i]) != ESPANK_SUCCESS) {
			slurm_error("pyxis: couldn't register option %s", table[i].name);
			return -1;
		}
	return 0;
}

/* The command line takes precedence: a variable counts only if its option was not given. */
void options_from_environment(spank_t sp)
{
	const struct {
		const char *name;
		bool given;
		spank_opt_cb_f callback;
		bool is_switch;
	} defaults[] = {
		{ "PYXIS_CONTAINER_IMAGE", options.image != NULL, on_image, false },
		{ "PYXIS_CONTAINER_MOUNTS", options.n_mounts > 0, on_mounts, false },
		{ "PYXIS_CONTAINER_WORKDIR", options.workdir != NULL, on_workdir, false },
		{ "PYXIS_CONTAINER_NAME", options.name != NULL, on_name, false },
		{ "PYXIS_CONTAINER_SAVE", options.save != NULL, on_save, false },
		{ "PYXIS_CONTAINER_ENV", options.env.len > 0, on_env, false },
		{ "PYXIS_CONTAINER_UNSHARE", options.unshare_net || options.unshare_ipc || options.unshare_uts, on_unshare, false },
		{ "PYXIS_CONTAINER_MOUNT_HOME", options.mount_home != -1, on_mount_home, true },
		{ "PYXIS_CONTAINER_REMAP_ROOT", options.remap_root != -1, on_remap_root, true },
		{ "PYXIS_CONTAINER_ENTRYPOINT", options.entrypoint != -1, on_entrypoint, true },
		{ "PYXIS_CONTAINER_ENTRYPOINT_LOG", options.entrypoint_log != -1, on_entrypoint_log, true },
		{ "PYXIS_CONTAINER_WRITABLE", options.writable != -1, on_writable, true },
	};
	char value[PATH_MAX];
	int on;

	for (size_t i = 0; i < sizeof(defaults) / sizeof(*defaults); i++) {
		if (defaults[i].given || spank_getenv(sp, defaults[i].name, value, sizeof(value)) != ESPANK_SUCCESS)
			continue;
		if (!defaults[i].is_switch)
			defaults[i].callback(0, value, 1);
		else if ((on = truth(value)) >= 0)
			defaults[i].callback(on, NULL, 1);
	}
	if (options.writable == -1 && spank_getenv(sp, "PYXIS_CONTAINER_READONLY", value, sizeof(value)) == ESPANK_SUCCESS &&
	    (on = truth(value)) >= 0)
		options.writable = !on;
}

bool options_enabled(void)
{
	const struct {
		const char *flag;
		bool given;
	} idle[] = {
		{ "container-mounts", options.n_mounts > 0 },
		{ "container-workdir", options.workdir != NULL },
		{ "container-save", options.save != NULL },
		{ "[no-]container-mount-home", options.mount_home != -1 },
		{ "[no-]container-remap-root", options.remap_root != -1 },
		{ "[no-]container-entrypoint", options.entrypoint != -1 },
		{ "container-readonly", options.writable == 0 },
		{ "container-writable", options.writable == 1 },
	};

	if (options.image != NULL || options.name != NULL)
		return true;
	for (size_t i = 0; i < sizeof(idle) / sizeof(*idle); i++)
		if (idle[i].given)
			slurm_error("pyxis: ignoring --%s because neither --container-image nor --container-name is set", idle[i].flag);
	return false;
}
