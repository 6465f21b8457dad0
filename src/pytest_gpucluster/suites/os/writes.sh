# shellcheck shell=sh
# put FOLDER: writes a file there; needs own_folder.sh. 8 KiB is more than a file system stores in the inode; head, since
# printf of dash reports "I/O error" on a full disk. Where another user can replace the new file, it is not written.
put() {
  f=$(mktemp "$1/gpucluster.XXXXXX") || return
  r=0
  if safe "$1" 2>/dev/null; then head -c 8192 /dev/zero >"$f"; r=$?; fi
  rm -f "$f"
  return "$r"
}
