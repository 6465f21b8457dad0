# shellcheck shell=sh
# shellcheck disable=SC1003 # the quotes of a program within a program
# shellcheck disable=SC2030,SC2031,SC2123 # PATH differs in the subshell on purpose
# Run in a task before its command, by sh or bash: what a login on this node sets. PATH takes the place of SYSTEM in the
# step's PATH; each other variable is set if the step does not have it, so that exports and TaskProlog take precedence.
# Files of the user's home are not read: they are the shell of one person, not the site's. A profile that hangs, fails or
# prints something changes nothing. Replaced: SYSTEM, and
# WITHOUT_TOOL by lines that remove the folders of the interpreter that runs pytest.
umask 022
login_path=$PATH login_before=$(export -p)
login_after=$(
  exec 3>&1 >/dev/null 2>&1 </dev/null
  login_limit='' login_shell=sh
  command -v timeout && login_limit='timeout -k 2 30'
  # files in /etc/profile.d are written for it
  command -v bash && login_shell=bash
  PATH=@SYSTEM@
  export PATH
  exec $login_limit $login_shell -c '
    [ ! -r /etc/environment ] || while IFS= read -r line || [ -n "$line" ]; do
      name=${line%%=*} name=${name#export } value=${line#*=}
      case $name in "$line" | "" | [0-9]* | *[!A-Za-z0-9_]*) continue ;; esac
      case $value in \"*\" | \'"'"'*\'"'"') value=${value#?} value=${value%?} ;; esac
      export "$name=$value"
    done </etc/environment
    # a daemon that it starts must not hold the pipe
    . /etc/profile 3>&-
    exec /bin/sh -c "unset LANG LANGUAGE LC_ALL LC_ADDRESS LC_COLLATE LC_CTYPE LC_IDENTIFICATION LC_MEASUREMENT \
      LC_MESSAGES LC_MONETARY LC_NAME LC_NUMERIC LC_PAPER LC_TELEPHONE LC_TIME; export -p >&3"'
)
# in a subshell first: a read-only variable would end this shell
if [ -n "$login_after" ] && (eval "$login_after" && eval "$login_before") >/dev/null 2>&1; then
  eval "$login_after"
  login_path=$PATH
  eval "$login_before"
  @WITHOUT_TOOL@
  case $PATH in *@SYSTEM@*) PATH=${PATH%%@SYSTEM@*}$login_path${PATH#*@SYSTEM@} ;; esac
fi
[ "${LANG-}" != C.UTF-8 ] || [ -d /usr/lib/locale/C.utf8 ] || [ -d /usr/lib/locale/C.UTF-8 ] || LANG=C
unset login_path login_before login_after
