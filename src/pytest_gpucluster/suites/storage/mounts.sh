# shellcheck shell=sh
# After paths.sh: prints, of a path on Lustre, its targets and the stripes of a new file.
command -v lfs >/dev/null || exit 0
for path do
  grep -q '^[^ ]* [^ ]* lustre ' /proc/mounts || break
  echo "lfs df $path"
  timeout 10 lfs df "$path" 2>&1
  echo "lfs getstripe $path"
  timeout 10 lfs getstripe -c -d "$path" 2>/dev/null
done
exit 0
