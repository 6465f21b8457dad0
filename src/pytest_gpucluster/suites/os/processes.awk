# Of `ps -eo pid=,ppid=,stat=,...`: processes in the states Z and D; before those in D, the number of their context
# switches, or `kernel` for a thread of the kernel. The count of all processes shows that ps ran.
{ n++ }
$1 == 1 { all = 1 }
$3 ~ /^[DZ]/ { stuck = 1 }
$3 ~ /^Z/ { print }
$3 ~ /^D/ {
  c = u = 0
  f = "/proc/" $1 "/status"
  while ((getline l < f) > 0) {
    if (l ~ /^State/ && l !~ /D/) break
    if (l ~ /^VmSize/) u = 1
    if (l ~ /ctxt_switches/) { split(l, w); c += w[2] }
  }
  close(f)
  print (c ? "@" (u ? c : "kernel") " " : "") $0
}
END { print "processes", (n + 0) (n && !all ? " visible" : ""); exit stuck ? 3 : 0 }
