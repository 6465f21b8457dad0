# nvidia-smi of a node: reads its options, then the required tables of the node, by the name in what:
# aliases (alias, name), gpus (name, unit, one value per GPU), links (GPU, link, GB/s or "-", replay, recovery, CRC,
# further replay and CRC errors per second),
# apps (GPU, pid, name, MiB), template (of nvidia-smi -q or -q -x). A single process, since it is called very often.
BEGIN {
  node = @NODES@ "/" ("SLURMD_NODENAME" in ENVIRON ? ENVIRON["SLURMD_NODENAME"] : "none")
  base = @BASE@
  while (there(node "/fault.hang")) system("exec @SLEEP@ 1") # short: this child ends soon after its parent
  read_options()
  if (mode == "topo") { show(pick("topo-" (matrix == "" ? "m" : matrix))); stop(0) }
  if (mode ~ /^(gpu|apps|remap)$/ && ("," format ",") !~ /,csv,/) {
    print "\"--format=\" switch is missing. Please run \"nvidia-smi -h\" for help.\n"
    stop(2)
  }
  GONE = "\001"; noheader = format ~ /noheader/; nounits = format ~ /nounits/
  if (mode == "query" && xml) mode = "xml"
  FS = "\t"; whole = mode == "query" || mode == "xml" || mode == "table"
  if (whole) now = date("%a %b %e %H:%M:%S %Y" (mode == "table" ? "      " : ""))
  ARGC = 1
  if (mode ~ /^(gpu|apps|remap)$/) table_of("aliases", base "/aliases")
  table_of("gpus", mode == "gpu" && list ~ /clocks_(event|throttle)_reasons/ && first_time("gpus.first") ? node "/gpus.first" : pick("gpus"))
  if (mode ~ /^(nvlink|query|xml)$/) table_of("links", pick("links"))
  if (mode ~ /^(apps|table|query|xml)$/) table_of("apps", pick("apps"))
  if (mode == "query") table_of("template", base "/nvidia-smi-q")
  if (mode == "xml") table_of("template", base "/nvidia-smi-q-x")
}
FNR == 1 { what = name_of[FILENAME] } # gawk -E takes what=NAME among the files for a file
what == "aliases" { alias[$1] = $2; next }
what == "gpus" {
  if (FNR == 1) require_fields()
  unit[$1] = $2
  if (NF - 2 > count) count = NF - 2
  if (whole || $1 in required || $1 ~ /^q\.(link_counters|sli)$/) for (i = 3; i <= NF; i++) value[$1, i - 3] = $i
  next
}
what == "links" {
  if (!(($1, "n") in links)) links[$1, "n"] = 0
  k = links[$1, "n"]++
  links[$1, k] = $2; speed[$1, k] = $3; more = $7 ? int($7 * uptime()) : 0
  replay[$1, k] = $4 + more; recovery[$1, k] = $5; crc[$1, k] = $6 + more
  next
}
what == "apps" { k = apps++; app_gpu[k] = $1; app_pid[k] = $2; app_name[k] = $3; app_memory[k] = $4; next }
what == "template" { template[lines++] = $0; next }

function read_options(   i, word) {
  mode = "table"; sub_mode = "s"
  for (i = 1; i < ARGC; i++) {
    word = ARGV[i]
    if (word ~ /^(-L|--list-gpus)$/) mode = "list"
    else if (word ~ /^(-q|--query)$/) mode = "query"
    else if (word ~ /^(-x|--xml-format)$/) xml = 1
    else if (word ~ /^(-d|--display)$/) display = ARGV[++i]
    else if (word ~ /^--display=/) display = value_of(word)
    else if (word ~ /^(-i|--id)$/) ids = ARGV[++i]
    else if (word ~ /^(-i|--id)=/) ids = value_of(word)
    else if (word ~ /^--query-gpu=/) { mode = "gpu"; list = value_of(word) }
    else if (word == "--query-gpu") { mode = "gpu"; list = ARGV[++i] }
    else if (word ~ /^--query-compute-apps=/) { mode = "apps"; list = value_of(word) }
    else if (word ~ /^--query-remapped-rows=/) { mode = "remap"; list = value_of(word) }
    else if (word ~ /^--format=/) format = value_of(word)
    else if (word == "--format") format = ARGV[++i]
    else if (word ~ /^(nvlink|topo)$/) mode = word
    else if (word ~ /^(-m|--matrix)$/) matrix = "m"
    else if (word == "-p2p") { matrix = "p2p"; i++ }
    else if (word ~ /^(-s|--status)$/) sub_mode = "s"
    else if (word ~ /^(-e|--errorcounters)$/) sub_mode = "e"
    else if (word ~ /^(-c|--capabilities)$/) sub_mode = "c"
    else {
      print "Invalid combination of input arguments. Please run 'nvidia-smi -h' for help.\n"
      stop(2)
    }
  }
}
function value_of(word) { return substr(word, index(word, "=") + 1) }
function stop(code) { stopped = 1; exit code } # exit runs END, too
function there(path,   line, found) { found = (getline line < path) >= 0; close(path); return found }
function pick(name) { return there(node "/load/" name) ? node "/load/" name : there(node "/" name) ? node "/" name : base "/" name }
# whether a table of the first reading exists and was not read yet
function first_time(name,   read) {
  read = node "/" name ".read"
  if (!there(node "/" name) || there(read)) return 0
  print "" > read; close(read); return 1
}
function show(path,   line) { while ((getline line < path) > 0) print line }
function table_of(name, path) { name_of[path] = name; ARGV[ARGC++] = path }
function date(layout,   command, line) {
  @DATE@
}

# the required fields of a GPU: its name, and those in the list
function require_fields(   n, i, names) {
  n = split("uuid,name,pci.bus_id," list, names, ",")
  for (i = 1; i <= n; i++) {
    gsub(/^ +| +$/, "", names[i])
    required[names[i] in alias ? alias[names[i]] : names[i]]
  }
}
function plain(text) { gsub(/^\[|\]$/, "", text); return text }
function get(name, gpu) { return value[name, gpu] }
function cell(name, gpu,   text) {
  if (name == "timestamp") return date("%Y/%m/%d %H:%M:%S.000")
  text = value[name, gpu]
  return (unit[name] == "" || nounits || text ~ /^\[/) ? text : text " " unit[name]
}
function title(name) { return unit[name] == "" ? name : name " [" unit[name] "]" }
function selected(gpu,   parts, n, i) {
  if (ids == "") return 1
  n = split(ids, parts, ",")
  for (i = 1; i <= n; i++)
    if (parts[i] == gpu || parts[i] == get("uuid", gpu) || (parts[i] ~ /:/ && get("pci.bus_id", gpu) ~ toupper(parts[i] "$")))
      return 1
  return 0
}
function canonical(name) {
  if (name in alias) name = alias[name]
  return name in unit && name !~ /^q\./ ? name : "" # the table has the fields of the driver
}
function invalid(name) { printf "Field \"%s\" is not a valid field to query.\n\n", name; stop(2) }
function head_line(gpu) { printf "GPU %d: %s (UUID: %s)\n", gpu, get("name", gpu), get("uuid", gpu) }

function query_gpu(   n, i, g, row) {
  n = split(list, requested, ",")
  for (i = 1; i <= n; i++) {
    gsub(/^ +| +$/, "", requested[i])
    if (canonical(requested[i]) == "") invalid(requested[i])
    requested[i] = canonical(requested[i])
  }
  if (!noheader) {
    row = ""
    for (i = 1; i <= n; i++) row = row (i > 1 ? ", " : "") title(requested[i])
    print row
  }
  for (g = 0; g < count; g++) {
    if (!selected(g)) continue
    row = ""
    for (i = 1; i <= n; i++) row = row (i > 1 ? ", " : "") cell(requested[i], g)
    print row
  }
}
function query_remap(   n, i, g, row, name) {
  n = split(list, requested, ",")
  for (i = 1; i <= n; i++) {
    gsub(/^ +| +$/, "", requested[i])
    if (requested[i] !~ /^(gpu_name|gpu_bus_id|gpu_serial|gpu_uuid|remapped_rows\..*)$/ || canonical(requested[i]) == "")
      invalid(requested[i])
  }
  if (!noheader) {
    row = ""
    for (i = 1; i <= n; i++) row = row (i > 1 ? ", " : "") requested[i]
    print row
  }
  for (g = 0; g < count; g++) {
    if (!selected(g)) continue
    row = ""
    for (i = 1; i <= n; i++) row = row (i > 1 ? ", " : "") cell(canonical(requested[i]), g)
    print row
  }
}
function app_cell(name, k,   g) {
  g = app_gpu[k]
  if (name == "pid") return app_pid[k]
  if (name == "process_name" || name == "name") return app_name[k]
  if (name ~ /^used_(gpu_)?memory$/) return app_memory[k] (nounits ? "" : " MiB")
  return cell(canonical(name), g)
}
function query_apps(   n, i, k, row) {
  n = split(list, requested, ",")
  for (i = 1; i <= n; i++) {
    gsub(/^ +| +$/, "", requested[i])
    if (requested[i] !~ /^(timestamp|gpu_name|gpu_bus_id|gpu_serial|gpu_uuid|pid|process_name|name|used_memory|used_gpu_memory)$/)
      invalid(requested[i])
  }
  if (!noheader) {
    row = ""
    for (i = 1; i <= n; i++)
      row = row (i > 1 ? ", " : "") (requested[i] ~ /^used_/ ? "used_gpu_memory [MiB]" : requested[i])
    print row
  }
  for (k = 0; k < apps; k++) {
    if (!selected(app_gpu[k])) continue
    row = ""
    for (i = 1; i <= n; i++) row = row (i > 1 ? ", " : "") app_cell(requested[i], k)
    print row
  }
}
function uptime(   line) {
  if ((getline line < "/proc/uptime") <= 0) return 0
  close("/proc/uptime")
  return line % 100000
}
function nvlink(   g, k, l, s, text) {
  for (g = 0; g < count; g++) {
    if (!selected(g) || !links[g, "n"]) continue # driver 580 prints nothing for a GPU without NVLink
    head_line(g)
    for (k = 0; k < links[g, "n"]; k++) {
      l = links[g, k]; s = speed[g, k]
      if (sub_mode == "s") {
        if (s == "-") printf "\t Link %d: <inactive>\n", l
        else printf "\t Link %d: %s GB/s\n", l, s
      } else if (s == "-") {
        continue
      } else if (sub_mode == "e") {
        text = get("q.link_counters", g) == "" ? "Replay Errors: @replay|Recovery Errors: @recovery|CRC Errors: @crc" : get("q.link_counters", g)
        sub(/@replay/, replay[g, k], text); gsub(/@recovery/, recovery[g, k], text); sub(/@crc/, crc[g, k], text)
        gsub(/\|/, "\n\t Link " l ": ", text)
        print "\t Link " l ": " text "\n"
      } else {
        text = "\t Link " l ", "
        printf "%sP2P is supported: true\n%sAccess to system memory supported: true\n", text, text
        printf "%sP2P atomics supported: true\n%sSystem memory atomics supported: true\n", text, text
        printf "%sSLI is supported: %s\n%sLink is supported: %s\n", text, get("q.sli", g), text, get("q.sli", g)
      }
    }
  }
}
# a line of a template with its values; GONE if a value, or the field of {?NAME}, does not exist on this GPU or driver
function substitute(line, g,   key, start, rest, out, short) {
  out = ""
  while ((start = match(line, /\{[@?]?[a-zA-Z_.0-9]+~?\}/)) > 0) {
    key = substr(line, RSTART + 1, RLENGTH - 2)
    out = out substr(line, 1, RSTART - 1)
    line = substr(line, RSTART + RLENGTH)
    if (key ~ /^\?/) { if (!(substr(key, 2) in unit)) return GONE; continue }
    if (key == "@processes") out = out (has_apps(g) ? "" : "None")
    else if (key == "@xprocesses") out = out xml_apps(g)
    else if (key == "@clocks") out = out xml_clocks(g)
    else {
      short = sub(/~$/, "", key)
      if (!(key in unit)) return GONE
      rest = plain(get(key, g))
      if (short) sub(/^0x/, "", rest)
      if (rest == "N/A") sub(/^( [%A-Za-z()]+|x)/, "", line)
      out = out rest
    }
  }
  return out line
}
function has_apps(g,   k) { for (k = 0; k < apps; k++) if (app_gpu[k] == g) return 1; return 0 }
function xml_apps(g,   k, text) {
  text = ""
  for (k = 0; k < apps; k++)
    if (app_gpu[k] == g)
      text = text "\n\t\t\t<process_info>\n\t\t\t\t<gpu_instance_id>N/A</gpu_instance_id>\n" \
        "\t\t\t\t<compute_instance_id>N/A</compute_instance_id>\n\t\t\t\t<pid>" app_pid[k] "</pid>\n" \
        "\t\t\t\t<type>C</type>\n\t\t\t\t<process_name>" app_name[k] "</process_name>\n" \
        "\t\t\t\t<used_memory>" app_memory[k] " MiB</used_memory>\n\t\t\t</process_info>"
  return text
}
# q.clocks "3201 2201/1980-345/15": of each memory clock the graphics clocks from 1980 MHz down, in steps
function xml_clocks(g,   parts, memory, range, n, i, clock, text) {
  split(get("q.clocks", g), parts, "/"); n = split(parts[1], memory, " "); split(parts[2], range, "-")
  for (i = 1; i <= n; i++) {
    text = text "\n\t\t\t<supported_mem_clock>\n\t\t\t\t<value>" memory[i] " MHz</value>"
    for (clock = range[1]; clock >= range[2]; clock -= parts[3])
      text = text "\n\t\t\t\t<supported_graphics_clock>" int(clock) " MHz</supported_graphics_clock>"
    text = text "\n\t\t\t</supported_mem_clock>"
  }
  return text
}
# drivers before 570 write the labels in 42 columns
function put(line) {
  if (columns && substr(line, 56, 2) == ": ") {
    label = substr(line, 1, 55); sub(/ +$/, "", label)
    line = sprintf("%-" columns "s: %s", label, substr(line, 58))
  }
  print line
}
function text_apps(g,   k) {
  print "    Processes"
  for (k = 0; k < apps; k++) {
    if (app_gpu[k] != g) continue
    printf "        %-47s: N/A\n        %-47s: N/A\n", "GPU instance ID", "Compute instance ID"
    printf "        %-47s: %s\n            %-43s: C\n", "Process ID", app_pid[k], "Type"
    printf "            %-43s: %s\n            %-43s: %s MiB\n", "Name", app_name[k], "Used GPU Memory", app_memory[k]
  }
}
# the sections of nvidia-smi -q that -d shows, as a pattern; "" for all
function displayed(   n, i, names, found) {
  section["MEMORY"] = "FB Memory|BAR1 Memory|Conf Compute Protected"; section["UTILIZATION"] = "Utilization"
  section["ECC"] = "ECC "; section["TEMPERATURE"] = "Temperature"; section["COMPUTE"] = "Compute Mode"
  section["POWER"] = "(GPU|GPU Memory|Module) Power Readings"; section["CLOCK"] = "Clocks$|Clocks \\{|.* Clocks$|Clock Policy"
  section["PERFORMANCE"] = "Performance State|Clocks Event|Sparse"; section["PIDS"] = "Processes"
  section["PAGE_RETIREMENT"] = "Retired Pages"; section["ROW_REMAPPER"] = "Remapped Rows"
  n = split(display, names, ",")
  for (i = 1; i <= n; i++) {
    if (!(names[i] in section)) { printf "Invalid display type: %s. Please run 'nvidia-smi -h' for help.\n\n", names[i]; stop(2) }
    found = found (found == "" ? "" : "|") section[names[i]]
  }
  return found == "" ? "" : "^    (" found ")"
}
function query(   g, i, line, only, seen) {
  only = displayed()
  columns = get("driver_version", 0) + 0 < 570 ? 42 : 0
  print "\n==============NVSMI LOG==============\n"
  put(sprintf("%-55s: %s", "Timestamp", now))
  put(sprintf("%-55s: %s", "Driver Version", get("driver_version", 0)))
  put(sprintf("%-55s: %s\n", "CUDA Version", get("q.cuda", 0)))
  put(sprintf("%-55s: %d", "Attached GPUs", count))
  for (g = 0; g < count; g++) {
    if (!selected(g)) continue
    for (i = 0; i < lines; i++) {
      if (template[i] ~ /^    [^ ]/) seen = only == "" || template[i] ~ only
      if (i && !seen) continue
      if (template[i] ~ /\{@processes\}/ && has_apps(g)) { text_apps(g); continue }
      line = template[i] ~ /\{/ ? substitute(template[i], g) : template[i]
      if (line != GONE) put(line)
    }
    print ""
  }
}
function query_xml(   g, i, line) {
  print "<?xml version=\"1.0\" ?>\n<!DOCTYPE nvidia_smi_log SYSTEM \"nvsmi_device_v" (get("driver_version", 0) + 0 < 570 ? 12 : 13) ".dtd\">\n<nvidia_smi_log>"
  printf "\t<timestamp>%s</timestamp>\n\t<driver_version>%s</driver_version>\n", now, get("driver_version", 0)
  printf "\t<cuda_version>%s</cuda_version>\n\t<attached_gpus>%d</attached_gpus>\n", get("q.cuda", 0), count
  for (g = 0; g < count; g++) {
    if (!selected(g)) continue
    for (i = 0; i < lines; i++) {
      line = template[i] ~ /\{/ ? substitute(template[i], g) : template[i]
      if (line != GONE) print line
    }
    print ""
  }
  print "</nvidia_smi_log>"
}
# drivers before 545 have a column of 22 for the memory, those before 570 another line under the head and before the processes
function table(   g, k, rule, ecc, mode, major, narrow, line) {
  major = get("driver_version", 0) + 0; narrow = major < 545
  line = narrow ? "+---------------------------------------------------------------------------------------+" : \
    "+-----------------------------------------------------------------------------------------+"
  rule = "+-----------------------------------------+" (narrow ? "" : "--") "----------------------+----------------------+"
  print now
  print line
  printf narrow ? "| NVIDIA-SMI %-22s Driver Version: %-12s CUDA Version: %-8s |\n" : \
    "| NVIDIA-SMI %-22s Driver Version: %-14s CUDA Version: %-8s |\n", \
    get("driver_version", 0), get("driver_version", 0), get("q.cuda", 0)
  print major < 570 ? "|" substr(rule, 2) : rule
  if (narrow) {
    print "| GPU  Name                 Persistence-M | Bus-Id        Disp.A | Volatile Uncorr. ECC |"
    print "| Fan  Temp   Perf          Pwr:Usage/Cap |         Memory-Usage | GPU-Util  Compute M. |"
    print "|                                         |                      |               MIG M. |"
    print "|=========================================+======================+======================|"
  } else {
    print "| GPU  Name                 Persistence-M | Bus-Id          Disp.A | Volatile Uncorr. ECC |"
    print "| Fan  Temp   Perf          Pwr:Usage/Cap |           Memory-Usage | GPU-Util  Compute M. |"
    print "|                                         |                        |               MIG M. |"
    print "|=========================================+========================+======================|"
  }
  for (g = 0; g < count; g++) {
    if (!selected(g)) continue
    ecc = get("ecc.mode.current", g) == "Enabled" ? get("ecc.errors.uncorrected.volatile.total", g) : "Off"
    mode = get("compute_mode", g) == "Exclusive_Process" ? "E. Process" : get("compute_mode", g)
    printf narrow ? "|%4d  %-28s %4s  | %16s %-4s|%21s |\n" : "|%4d  %-28s %4s  | %18s %-4s|%21s |\n", \
      g, get("name", g), get("persistence_mode", g) == "Enabled" ? "On" : "Off", get("pci.bus_id", g), "Off", ecc
    printf narrow ? "| %3s %4sC %5s %14.0fW /%5.0fW |%7dMiB /%6dMiB |%7s%% %12s |\n" : \
      "| %3s %4sC %5s %14.0fW /%5.0fW |%8dMiB / %6dMiB |%7s%% %12s |\n", "N/A", get("temperature.gpu", g), \
      get("pstate", g), get("power.draw", g), get("power.limit", g), get("memory.used", g), \
      get("memory.total", g), get("utilization.gpu", g), mode
    printf "|%40s |%" (narrow ? 21 : 23) "s |%21s |\n%s\n", "", "", plain(get("mig.mode.current", g)), rule
  }
  if (major < 570) printf "%" length(line) "s\n", ""
  else print ""
  print line
  if (narrow) {
    print "| Processes:                                                                            |"
    print "|  GPU   GI   CI        PID   Type   Process name                            GPU Memory |"
    print "|        ID   ID                                                             Usage      |"
    print "|=======================================================================================|"
  } else {
    print "| Processes:                                                                              |"
    if (major < 570)
      print "|  GPU   GI   CI        PID   Type   Process name                              GPU Memory |"
    else
      print "|  GPU   GI   CI              PID   Type   Process name                        GPU Memory |"
    print "|        ID   ID                                                               Usage      |"
    print "|=========================================================================================|"
  }
  for (k = 0; k < apps; k++)
    if (selected(app_gpu[k]))
      printf major < 570 ? "|%5d   N/A  N/A %9d      C   %-" (narrow ? 39 : 41) "s %8dMiB |\n" : \
        "|%5d   N/A  N/A %15d      C   %-35s %8dMiB |\n", \
        app_gpu[k], app_pid[k], substr(app_name[k], 1, 35), app_memory[k]
  if (!apps) printf "|  %-" (narrow ? 85 : 87) "s|\n", "No running processes found"
  print line
}
END {
  if (stopped) exit
  found = 0
  for (g = 0; g < count; g++) found += selected(g)
  if (!found) { print "No devices were found"; exit 6 }
  if (mode == "list") for (g = 0; g < count; g++) { if (selected(g)) head_line(g) }
  else if (mode == "gpu") query_gpu()
  else if (mode == "remap") query_remap()
  else if (mode == "apps") query_apps()
  else if (mode == "nvlink") nvlink()
  else if (mode == "query") query()
  else if (mode == "xml") query_xml()
  else table()
}
