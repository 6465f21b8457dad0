#!/bin/sh
@SHARED@
# its options, messages and file, with little in it
file=nvidia-bug-report.log mode=
while [ $# -gt 0 ]; do
  case $1 in
    --output-file) file=$2 && shift ;;
    --safe-mode) mode=' (safe mode)' ;;
    *) echo "ERROR: Unrecognized option: $1" >&2; exit 1 ;;
  esac
  shift
done
printf '\nnvidia-bug-report.sh will now collect information about your\nsystem and create the file %s.gz in the current\ndirectory.\n\nRunning nvidia-bug-report.sh...' "'${file##*/}'"
{
  printf '____________________________________________\n\nStart of NVIDIA bug report log file%s.  SIMULATED.\n' "$mode"
  dmesg
  nvidia-smi -q
} > "$file" 2>&1
gzip -f "$file" && echo " complete."
