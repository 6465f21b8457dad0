# shellcheck shell=sh
# After paths.sh: prints what the tools that the node has show of this user's quotas.
timeout 10 quota -u -v -w -p 2>/dev/null
command -v lfs >/dev/null || exit 0
for path do
  grep -q '^[^ ]* [^ ]* lustre ' /proc/mounts || break
  echo "lfs quota $path"
  timeout 10 lfs quota -q -u "$(id -u)" "$path" 2>/dev/null
done
exit 0
