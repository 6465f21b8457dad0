# shellcheck shell=sh
# Prints the clock of the BMC, the end of its event log and all sensors, which it only reads; each part ends with its exit status.
# Needs limited.sh. `sdr elist` reads the repository once for all sensors, `sdr type` once for each type.
export LC_ALL=C TZ=UTC0 PATH="$PATH:/usr/sbin:/sbin"
part() {
  echo "part $1"
  s=$2
  shift 2
  limited "$s" ipmitool "$@" 2>&1
  r=${ended?}
  echo "rc $r"
}
echo "user $(id -u)"
[ -e /dev/ipmi0 ] || [ -e /dev/ipmi/0 ] || [ -e /dev/ipmidev/0 ] || echo "no device"
if command -v ipmitool >/dev/null 2>&1; then
  part time 10 sel time get
  if [ "$r" = 0 ]; then
    part events @EVENT_SECONDS@ sel list last 200
    a=$(part sensors @SENSOR_SECONDS@ sdr elist)
    printf '%s\n' "$a"
    # a reading may be wrong once: a second one must confirm a fault
    case $a in
      *" lcr |"* | *" lnr |"* | *" ucr |"* | *" unr |"* | *" cr  |"* | *" nr  |"* | *etected,* | *lost* | *Lost* | *Fault*)
        sleep 3
        part second @SENSOR_SECONDS@ sdr elist
        ;;
    esac
  fi
fi
echo end
