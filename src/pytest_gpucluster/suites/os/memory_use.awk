# Of `df -Pk`, `find -printf 'shm %k %u %p\n'` and `ps -o rss=,pid=,user=,comm=`: what other tmpfs than /dev/shm hold, the files
# of /dev/shm in all, and the files and processes that are not small, in kB.
$1 == "shm" { shm += $2; if ($2 >= least) { sub(/^shm/, "file"); print }; next }
$1 ~ /^[0-9]+$/ && NF >= 4 && $0 !~ /% / { if ($1 + 0 >= least) print "process", $0; next }
$5 ~ /^([0-9]+%|-)$/ && $6 != "/dev/shm" { other += $3 }
END { printf "tmpfs %d\nshm %d\n", other, shm }
