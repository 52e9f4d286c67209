#!/bin/sh
# With arguments, `polyhead export` into the model volume. Without, the families that compose serves: a trained
# sentence encoder, and one encoder for each head count. What is there already stays as it is, and is said to differ
# where this image would export something else.
set -eu

# A family that was exported when the image was built. The name with a dot is not served, nor left behind; where a
# start was interrupted it still is there, half-written, and `cp` would write into it.
take() {
  if [ -e "/models/$1" ]; then
    if cmp -s "/opt/models/$1/1/manifest.json" "/models/$1/1/manifest.json"; then
      echo "$1 is there already"
    else
      echo "$1 is there already, and differs from this image's; remove it from the volume to renew it"
    fi
  elif rm -rf "/models/.$1" && cp -r "/opt/models/$1" "/models/.$1" && mv "/models/.$1" "/models/$1"; then
    echo "$1 is there now"
  else
    rm -rf "/models/.$1"
    exit 1
  fi
}

if [ "$#" -gt 0 ]; then
  exec polyhead export --models /models "$@"
fi
take minilm
if [ -n "${POLYHEAD_EXPORT_PRESET:-}${POLYHEAD_EXPORT_HEADS:-}" ]; then
  exec polyhead export --models /models --if-exists skip \
    --preset "${POLYHEAD_EXPORT_PRESET:-teaching}" --heads "${POLYHEAD_EXPORT_HEADS:-1,2,4,8}"
fi
for heads in 1 2 4 8; do
  take "teaching-h$heads"
done
