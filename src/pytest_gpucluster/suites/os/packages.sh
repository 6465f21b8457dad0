# shellcheck shell=sh
# Prints the versions of packages, of dpkg or of rpm.
export LC_ALL=C
if command -v dpkg-query >/dev/null 2>&1; then
  exec dpkg-query -W -f='${Package}\t${Version}\t${Status}\n' @NAMES@ 2>&1
elif command -v rpm >/dev/null 2>&1; then
  exec rpm -q --qf '%{NAME}\t%{VERSION}-%{RELEASE}\tinstalled\n' @NAMES@ 2>&1
else
  echo 'neither dpkg-query nor rpm is installed' >&2
  exit 127
fi
