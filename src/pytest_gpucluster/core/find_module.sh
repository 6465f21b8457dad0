# shellcheck shell=bash
# Defines `module` as login shells do. For bash.
command -v module >/dev/null 2>&1 || for f in /etc/profile.d/lmod.sh /etc/profile.d/z00_lmod.sh \
  /etc/profile.d/modules.sh /usr/share/modules/init/bash; do [ -r "$f" ] && . "$f" && break; done
command -v module >/dev/null 2>&1 || { own=$PATH; . /etc/profile; PATH=$own; } >/dev/null 2>&1 </dev/null
