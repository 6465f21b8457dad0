# Of `grep -H . FILES`: `pci ADDRESS CLASS ID WIDTH SPEED DRIVER MOST MOST-OF-SLOT` of storage, network, display, accelerators and NVSwitches;
# `name ADDRESS NAME`; lines of NVMe controllers from "sys" on (a path may have a prefix). Classes are those of `lspci -n`; the kernel omits a leading 0.
i = index($0, "/device/uevent:") {
  if (split($0, part, "PCI_SLOT_NAME=") == 2) { n = split(substr($0, 1, i - 1), path, "/"); print "name", part[2], path[n] }
  next
}
i = index($0, "proc/mdstat:") { print "md", substr($0, i + 12); next }
i = index($0, "sys/class/nvme/") { print substr($0, i); next }
i = index($0, "sys/bus/pci/devices/") {
  split(substr($0, i + 20), part, "/")
  if (part[1] != last) { show(); last = part[1]; class = id = ""; width = speed = driver = most = slot = "-" }
  value = part[2]
  sub(/^[^:]*:/, "", value)
  if (value ~ /^PCI_CLASS=/) class = substr("000000" substr(value, 11), length(value) - 9)
  if (value ~ /^PCI_ID=/) id = tolower(substr(value, 8))
  if (value ~ /^DRIVER=/) driver = substr(value, 8)
  if (part[2] ~ /^current_link_width:/) width = value
  if (part[2] ~ /^max_link_width:/) most = value
  if (part[2] == ".." && sub(/^max_link_width:/, "", part[3])) slot = part[3]
  if (part[2] ~ /^current_link_speed:/) { speed = value; sub(/ .*/, "", speed) }
}
function show() {
  class = tolower(substr(class, 1, 4))
  if (class ~ /^(01|02|03|12)/ || class == "0b40" || (class == "0680" && id ~ /^10de:/)) print "pci", last, class, id, width, speed, driver, most, slot
}
END { show() }
