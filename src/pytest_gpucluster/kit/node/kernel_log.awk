# Folds a kernel log. Prints one line per kind of line and device:
# `seen<TAB>COUNT<TAB>NUMBER<TAB>FIRST<TAB>LAST<TAB>TEXT`; then what kernel_state.sh reads: needs, devices, disks, sectors.
# Replaced: the numbers SORTS and COMPLAINTS, the expressions QUIET, GRAVE, RULES and DRIVER, the rule KNOWN of the cluster
# file, and NEEDS.

# note: counts the errors of a line under its key: the number that the line prints, else one for each second.
function note(key, sort, at, time, words, errors) {
  if (!(key in count)) {
    if (sorts[sort] + 0 == (sort == 2 ? @COMPLAINTS@ : @SORTS@)) { more[sort]++; return }
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
}

# registers: those of an NVLink error (of NVLink 5 without the bits of the link).
function registers(words) {
  if (!match(words, /[(]0x[0-9a-f]+,? 0x[0-9a-f]+/)) return ""
  words = substr(words, RSTART + 1, RLENGTH - 1)
  if (words !~ /,/) words = substr(words, 1, 5) substr(words, 8)
  return " " words
}

function seconds(at) {
  gsub(/[^0-9.]/, "", at)
  return at + 0
}

# fold: the text without what varies (addresses, pids, long numbers); names and PCI addresses stay: the device.
# The number of a CPU stays beside that of a bank.
function fold(words, all, out, n, i, w) {
  gsub(/0x[0-9a-fA-F]+/, "#", words)
  if (!all) gsub(/[Cc][Pp][Uu][# ]?[0-9]+/, "CPU#", words)
  n = split(words, word, " ")
  out = ""
  for (i = 1; i <= n; i++) {
    w = word[i]
    if (w !~ /[0-9a-f][0-9a-f][0-9a-f][0-9a-f]:[0-9a-f][0-9a-f]:[0-9a-f][0-9a-f]/) {
      if (w !~ /^[^0-9a-zA-Z{]*[a-zA-Z]/ && !(all && word[i - 1] ~ /^(CPU|Bank)$/)) {
        gsub(/[0-9a-f]*[0-9]+[0-9a-f]*/, "#", w)
      } else {
        gsub(/[0-9a-f][0-9a-f][0-9a-f][0-9a-f][0-9a-f][0-9a-f][0-9a-f][0-9a-f]+/, "#", w)
        if (w !~ /^[(]?(branch|channel|slot|csrow):/) gsub(/[:=(][0-9]+/, "#", w)
        gsub(/[0-9][0-9][0-9]+/, "#", w)
      }
    }
    out = out " " w
  }
  return out
}

# tokens: collects the names of devices of this shape.
function tokens(rest, shape, name) {
  while (match(rest, shape) && names < 200) {
    name = substr(rest, RSTART, RLENGTH)
    rest = substr(rest, RSTART + RLENGTH)
    gsub(/[^a-z0-9.:-]/, "", name)
    if (!(name in named)) { named[name] = 1; names++; device[names] = name }
  }
}

# dmesg and journalctl write before the text: <3>, "kern  :err   : ", times and columns in [], a date, "HOST kernel: ".
# A line that begins with a blank continues the previous one.
{
  gsub(/\r/, "")
  lines++
  text = $0
  stamp = ""
  level = ""
  if (match(text, /\[ *[0-9]+[.][0-9]+\]/) && RSTART < 60) stamp = substr(text, RSTART, RLENGTH)
  else if (text ~ /^ /) stamp = before
  before = stamp
  if (match(text, /^<[0-9]+>/)) level = substr(text, 2, RLENGTH - 2) % 8
  sub(/^<[0-9]+>/, "", text)
  sub(/^[a-z0-9]+ *: *(emerg|alert|crit|err|warn|notice|info|debug) *: */, "", text)
  sub(/^[0-9][0-9][0-9][0-9]-[0-9][0-9]-[0-9][0-9]T[-0-9:.,+]+ */, "", text)
  sub(/^[A-Z][a-z][a-z] +[0-9]+ [0-9][0-9]:[0-9:.]+ /, "", text)
  sub(/^([^ []+ )?kernel: */, "", text)
  while (sub(/^\[ *[TC0-9.+]+\] */, "", text) || sub(/^\[[A-Z][a-z][a-z] [^]]*[0-9]\] */, "", text)) continue
  sub(/^([^ []+ )?kernel: */, "", text)
  low = tolower(text)
}
NR == 1 { print "from\t" $0 }

# Lines of processes like systemd have the form "[HOST ]NAME[PID]: ": they are not from the kernel.
text ~ /^([^ []+ )?[^][ :]+\[[0-9]+\]: / && text !~ /systemd\[1\]: Freezing execution/ { next }
text ~ /NVRM: loading NVIDIA/ { loaded = stamp }

# The key of an Xid is number, GPU and severity, and the registers of an NVLink error.
# The second and third line of an SXid hold registers.
text ~ /Xid [(]/ && match(text, /(NVRM: |nvidia-nvswitch[^ ]* S)Xid [(][^)]*[)]: [0-9]+/) {
  key = substr(text, RSTART, RLENGTH)
  rest = substr(low, RSTART + RLENGTH)
  if (rest ~ /^, *(severity [0-9]|data [{])/) next
  sub(/ GPU-[^)]*/, "", key)
  sub(/^, *pid=[^,]*,( *name=[^,]*,)?/, "", rest)
  if (rest ~ /non-?fatal/) key = key " n"
  else if (rest ~ /fatal/) key = key " f"
  if (rest ~ /correctable/) key = key " c"
  if (rest ~ /rst: yes/) key = key " r"
  if (key ~ /: (74|14[4-9]|150)$/ || key ~ /: (74|14[4-9]|150) [nf]$/) key = key registers(rest)
  note(key, 1, NR, stamp, text, 1)
  next
}
text ~ /^BERT: .*previous boot/ { past = 1; note("bert", 0, NR, stamp, text, 1); next }
past && text ~ /^\[Hardware Error\]/ { next }
{ past = 0 }
match(low, /event severity: [a-z]+/) { severity = substr(low, RSTART + 16, RLENGTH - 16) }
low ~ /hardware error.*(error_type:|section_type: memory)/ {
  text = text " (severity " severity ")"
  low = low " (severity " severity ")"
}
@KNOWN@
low ~ /@QUIET@/ && low !~ /@GRAVE@/ { quiet++; next }

# The key of a machine check keeps the first digit of its status, which has the bit "uncorrected".
low ~ /@RULES@/ || low ~ /@DRIVER@/ {
  sort = low ~ /@RULES@/ ? 0 : 2
  if (sort == 2 && level != "" && level > 4) next
  if (match(text, /active with [0-9]+ out of [0-9]+/)) {
    split(substr(text, RSTART, RLENGTH), word, " ")
    if (word[3] == word[6]) next
  }
  bank = match(low, /bank [0-9]+: (0x)?[0-9a-f]/) ? substr(low, RSTART + RLENGTH - 1, 1) : ""
  errors = match(low, /[0-9]+ [cu]e /) ? substr(low, RSTART, RLENGTH - 4) + 0 : 0
  note(fold(text, bank != "") bank, sort, NR, stamp, text, errors)
  @NEEDS@
  if (match(low, "dev [a-z0-9]+, sector [0-9]+")) {
    split(substr(low, RSTART + 4, RLENGTH - 4), word, ", sector ")
    sector[word[1]] = word[2]
  }
  tokens(low, "[0-9a-f][0-9a-f][0-9a-f][0-9a-f]:[0-9a-f][0-9a-f]:[0-9a-f][0-9a-f][.][0-7]")
  tokens(low, "(^|[^a-z0-9])((nvme|mmcblk)[0-9]+(n[0-9]+)?|(sd|vd|xvd)[a-z]+|(dm-|md)[0-9]+)")
}
END {
  for (i = 0; i < kinds; i++) {
    k = order[i]
    print "seen\t" count[k] "\t" line[k] "\t" first[k] "\t" last[k] "\t" substr(latest[k], 1, 500)
  }
  for (k in needs) print "need\t" k
  for (i = 1; i <= names; i++) print (device[i] ~ /:/ ? "pci\t" : "disk\t") device[i]
  for (k in sector) print "sector\t" k "\t" sector[k]
  if (quiet) print "quiet\t" quiet
  print "end\t" lines + 0 "\t" more[0] + 0 "\t" more[1] + 0 "\t" more[2] + 0 "\t" loaded
}
