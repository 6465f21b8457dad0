# Folds a kernel log. Prints one line per kind of line and device:
# `seen<TAB>COUNT<TAB>NUMBER<TAB>FIRST<TAB>LAST<TAB>LEVEL<TAB>TEXT`; LEVEL is empty where the log has none.
# Replaced: the number SORTS, the expressions CLASSES and AGAIN (log_classes.py), and the rule KNOWN of the cluster file.

# note: counts the errors of a line under its key: the number that the line prints, else one for each second.
function note(key, sort, at, time, words, errors) {
  if (!(key in count)) {
    if (sorts[sort] + 0 == @SORTS@) { more[sort]++; return }
    sorts[sort]++
    order[kinds++] = key
    first[key] = time
    count[key] = 0
  }
  if (errors || time == "" || last[key] == "" || seconds(time) - begun[key] > 0.99) {
    count[key] += errors ? errors : 1
    begun[key] = seconds(time)
  }
  line[key] = at
  last[key] = time
  latest[key] = words
  if (!(key in grade) || level < grade[key]) grade[key] = level
}

function seconds(at) { gsub(/[^0-9.]/, "", at); return at + 0 }

# fold: the text without what varies (addresses, pids, long numbers); names, PCI addresses, banks and slots stay: the device.
function fold(words, out, n, i, w) {
  gsub(/0x[0-9a-fA-F]+/, "#", words)
  if (words !~ /Bank [0-9]/) gsub(/CPU[# ]?[0-9]+/, "CPU#", words)
  n = split(words, word, " ")
  for (i = 1; i <= n; i++) {
    w = word[i]
    if (w ~ /[0-9a-f][0-9a-f][0-9a-f][0-9a-f]:[0-9a-f][0-9a-f]:|^[(]?(branch|channel|slot|csrow):/ || word[i - 1] ~ /^(CPU|Bank)$/) ;
    else if (w !~ /^[^0-9a-zA-Z{]*[a-zA-Z]/) gsub(/[0-9a-f]*[0-9]+[0-9a-f]*/, "#", w)
    else gsub(/[:=(][0-9]+|[0-9][0-9][0-9]+|[0-9a-f][0-9a-f][0-9a-f][0-9a-f][0-9a-f][0-9a-f][0-9a-f][0-9a-f]+/, "#", w)
    out = out " " w
  }
  return out
}

# record: one event of the lines of a CPER record. Its device is the module that it names.
function record(name, now) {
  if (whole == "") return
  now = level
  level = whole_level
  name = match(whole, /(fru_text|DIMM location|device_id): [^;]*/) ? substr(whole, RSTART, RLENGTH) : ""
  match(whole, /severity: [a-z]+/)
  note("record " substr(whole, RSTART, RLENGTH) name, 0, whole_at, whole_time, whole, 0)
  whole = ""
  level = now
}

NR == 1 { print "from\t" $0 }
# Before the text stand <3>, "kern  :err   : ", times and columns in [], a date, "HOST kernel: ". A line that is continued has none.
{
  text = $0
  if (match(text, /\[ *[0-9]+[.][0-9]+\]/) && RSTART < 60) stamp = substr(text, RSTART, RLENGTH)
  else if (text !~ /^ /) stamp = ""
  if (text !~ /^ /) level = ""
  if (match(text, /^<[0-9]+>/)) { level = substr(text, 2, RLENGTH - 2) % 8; if (RLENGTH > 3) next }
  if (match(text, /^[a-z0-9]+ *: *(emerg|alert|crit|err|warn|notice|info|debug) *: */)) {
    if (text !~ /^kern/) next  # of a process
    split(text, word, / *: */)
    level = int(index("emerg alert crit  err   warn  noticeinfo  debug", word[2]) / 6)
    text = substr(text, RLENGTH + 1)
  }
  sub(/^<[0-9]+>/, "", text)
  sub(/^([0-9]+-[0-9]+-[0-9]+T[^ ]+|[A-Z][a-z][a-z] +[0-9]+ [0-9:.]+) +/, "", text)
  while (sub(/^(([^ []+ )?kernel: *|\[ *[TC0-9.+]+\] *|\[[A-Z][a-z][a-z] [^]]*[0-9]\] *| +)/, "", text)) continue
  low = tolower(text)
}
text ~ /^([^ []+ )?[^][ :]+\[[0-9]+\]: / || text == "" { next }  # "[HOST ]NAME[PID]: " is of a process
text ~ /NVRM: loading NVIDIA/ { loaded = stamp; next } # read here: nothing else is said of it

# The key of an Xid is number, GPU and severity, and the registers of an NVLink error (of NVLink 5 without the bits of the link).
# The second and third line of an SXid hold registers.
text ~ /Xid [(]/ && match(text, /(NVRM: |nvidia-nvswitch[^ ]* S)Xid [(][^)]*[)]: [0-9]+/) {
  key = substr(text, RSTART, RLENGTH)
  rest = substr(low, RSTART + RLENGTH)
  if (rest ~ /^, *(severity [0-9]|data [{])/) next
  sub(/ GPU-[^)]*/, "", key)
  sub(/^, *pid=[^,]*,( *name=[^,]*,)?/, "", rest)
  if (key ~ /: (74|14[4-9]|150)$/ && match(rest, /[(]0x[0-9a-f]+,? 0x[0-9a-f]+/)) {
    at = substr(rest, RSTART + 1, RLENGTH - 1)
    key = key " " (at ~ /,/ ? at : substr(at, 1, 5) substr(at, 8))
  }
  note(key " " (rest ~ /non-?fatal/) (rest ~ /fatal/) (rest ~ /correctable/) (rest ~ /rst: yes/), 1, NR, stamp, text, 1)
  next
}
text ~ /^BERT: .*previous boot/ { past = 1; note("bert", 2, NR, stamp, text, 1); next }
past && text ~ /^\[Hardware Error\]/ { next }
{ past = 0 }
match(text, /^[{][0-9]+[}]\[Hardware Error\]: */) {
  at = RLENGTH
  if (substr(text, 1, index(text, "}")) != number) record()
  number = substr(text, 1, index(text, "}"))
  if (low !~ /hardware error from|it has been corrected/) whole = whole (whole == "" ? "[Hardware Error]: " : "; ") substr(text, at + 1)
  whole_at = NR; whole_time = stamp; whole_level = level
  next
}
# Some messages of the driver have three lines, the first of which names the GPU.
match(text, /^NVRM: The NVIDIA GPU [0-9a-f:.]+/) { gpu = substr(text, 22, RLENGTH - 21); gpu_at = NR }
gpu && text ~ /^NVRM: fallen off the bus/ && NR - gpu_at < 4 { text = text " (GPU " gpu ")" }
@KNOWN@

# The key of a machine check keeps the first digit of its status, which has the bit "uncorrected".
low ~ /@CLASSES@/ {
  bank = match(low, /bank [0-9]+: (0x)?[0-9a-f]/) ? substr(low, RSTART + RLENGTH - 1, 1) : ""
  errors = match(low, /[0-9]+ [cu]e /) ? substr(low, RSTART, RLENGTH - 4) + 0 : 0
  note(fold(text) bank, low ~ /@AGAIN@/ ? 3 : 0, NR, stamp, text, errors)
  next
}
# The frames and registers below a message belong to it. Without levels, what each boot prints in its first minute is left out.
low ~ /^(\? )?[a-z0-9_.]+[+]0x|^(call trace|modules linked in|hardware name|code|r(ip|[a-ds][xip]|[bs]p|di|[0-9]+)|[fcg]s|cr2|dr[0-9]|cpu): |^(---|<|\[<)/ { next }
level == "" && stamp != "" && seconds(stamp) < 60 && low !~ /error|fail|fatal|timed? ?out|unable|corrupt|warning/ { next }
level == "" || level < 4 { note(fold(text), 2, NR, stamp, text, 0) }
END {
  record()
  for (i = 0; i < kinds; i++) {
    k = order[i]
    print "seen\t" count[k] "\t" line[k] "\t" first[k] "\t" last[k] "\t" grade[k] "\t" substr(latest[k], 1, 500)
  }
  print "end\t" NR + 0 "\t" more[0] + 0 "\t" more[1] + 0 "\t" more[2] + 0 "\t" loaded
}
