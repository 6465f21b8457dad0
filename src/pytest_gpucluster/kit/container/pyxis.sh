# shellcheck shell=sh
# Prints the library and the version of Pyxis on a node.
# plugstack.conf or an included file names the plugin; the version is text inside the plugin.
conf=$(scontrol show config 2>/dev/null | sed -n 's/^PlugStackConfig *= *//p')
for conf in "$conf" "${SLURM_CONF%/*}/plugstack.conf" /etc/slurm/plugstack.conf; do [ ! -r "$conf" ] || break; done
[ -r "$conf" ] || { echo "no plugstack.conf"; exit 0; }
files=$conf
# shellcheck disable=SC2013 # a list of paths
for more in $(sed -n 's/^ *include  *//p' "$conf"); do
  case $more in /*) files="$files $more" ;; *) files="$files ${conf%/*}/$more" ;; esac
done
# shellcheck disable=SC2086 # a list of files
so=$(sed -n 's/^ *\(required\|optional\)  *\([^ ]*pyxis[^ ]*\.so\).*/\2/p' $files 2>/dev/null | head -n 1)
[ -n "$so" ] || { echo "no line with pyxis in $files"; exit 0; }
case $so in /*) ;; *) so=$(scontrol show config | sed -n 's/^PluginDir *= *//p')/$so ;; esac
[ -r "$so" ] || { echo "$so does not exist"; exit 0; }
echo "so $so"
grep -ao 'pyxis: version v[0-9][0-9A-Za-z.+-]*' "$so" | head -n 1
