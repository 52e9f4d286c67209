#!/bin/sh
# With arguments, `polyhead export` into the model volume. Without, the families that compose serves: a trained
# sentence encoder, and one encoder for each head count. What is there already stays as it is.
set -eu

if [ "$#" -gt 0 ]; then
  exec polyhead export --models /models "$@"
fi
polyhead export --models /models --if-exists skip --checkpoint /opt/polyhead/all-MiniLM-L6-v2 --name minilm
exec polyhead export --models /models --if-exists skip \
  --preset "${POLYHEAD_EXPORT_PRESET:-teaching}" --heads "${POLYHEAD_EXPORT_HEADS:-1,2,4,8}"
