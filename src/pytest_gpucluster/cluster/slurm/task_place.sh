# shellcheck shell=sh
# Where a task runs, for task.sh: the device of its root file system and, by the first task of each node, the fingerprint
# of its image: the files, then the names of the installed Python packages; the database of rpm by its length.
# shellcheck disable=SC2034 # task.sh prints both
gpucluster_root=$(
  while read -r _ _ dev at to _; do [ "$to" != / ] || root=$dev:$at; done </proc/self/mountinfo
  echo "$root"
)
gpucluster_image=
[ "${SLURM_LOCALID:-0}" != 0 ] || gpucluster_image=$(uname -m 2>/dev/null)-$(
  {
    cat /etc/os-release /etc/environment /var/lib/dpkg/status /lib/apk/db/installed
    LC_ALL=C ls -d /usr/lib/python3*/*-packages/*-info /usr/local/lib/python3*/*-packages/*-info \
      /opt/conda/lib/python3*/site-packages/*-info
    wc -c </var/lib/rpm/rpmdb.sqlite
  } 2>/dev/null | cksum 2>/dev/null | { read -r sum size && echo "$sum-$size"; }
)
