# Folds `lspci -vvv`: the access control of each function, with the kind of its port.
# 'Express (v2) Downstream Port' precedes 'ACSCtl:': extended capabilities follow the others.
/^[0-9a-f]/ { d = $1; k = "unknown"; n++ }
/Express .*Downstream Port/ { k = "downstream" }
/Express .*Root Port/ { k = "root" }
/access denied/ { x++ }
/ACSCtl:/ { print "acs", d, k, $0 }
END { print "end", n + 0, x + 0 }
