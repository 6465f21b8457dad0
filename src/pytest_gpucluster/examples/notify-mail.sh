#!/bin/sh
# For the cluster file: notify: {command: [/opt/ops/notify-mail.sh, ops@example.org]}
# Mails the text of a message; its first line is the subject.
set -eu
python3 -c '
import email.message, json, sys
text = json.load(sys.stdin)["text"]
mail = email.message.EmailMessage()
mail["To"], mail["Subject"] = sys.argv[1], text.splitlines()[0]
mail.set_content(text, cte="8bit")
sys.stdout.buffer.write(mail.as_bytes())
' "$1" | "${SENDMAIL:-/usr/sbin/sendmail}" -t
