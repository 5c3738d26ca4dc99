#!/usr/bin/env bash
# Certificates as an operator sets them up: keygen, a server, clients with the right certificates and without.
set -euo pipefail

nram=$1
memserver=$2
directory=$(mktemp -d -p /tmp --suffix=-nram-tls)
unset NRAM_POOL NRAM_TLS_DIR
servers=()
cleanup() {
  mountpoint -q "$directory/mount" && "$nram" umount "$directory/mount" > /dev/null 2>&1 || true
  for pid in "${servers[@]}"; do kill "$pid" 2> /dev/null && wait "$pid" || true; done
  rm -rf "$directory"
}
trap cleanup EXIT
. "$(dirname "$0")/expect.sh"

# A server of its own; its address is put into $pool.
serve() { # flags
  rm -f "$directory/ready"
  "$memserver" --donate=256M --port=0 --ready-file="$directory/ready" "$@" 2>> "$directory/log" &
  servers+=($!)
  until [ -e "$directory/ready" ]; do
    kill -0 "${servers[-1]}" 2> /dev/null || fail "the server did not start: $(tail -3 "$directory/log")"
    read -rt 0.05 <> <(:) || true
  done
  pool=127.0.0.1:$(jq .control_port "$directory/ready")
}
keys=$directory/keys

expect 2 "give one directory" "$nram" keygen
expect 2 "need each other" "$nram" keygen "$keys" --secret=/etc/passwd
expect 0 "a new authority" "$nram" keygen "$keys" --host=127.0.0.1
[ "$(stat -c %a "$keys/ca.key" "$keys/server.key" "$keys/client.key" | sort -u)" = 600 ] || fail "others may read keys"
openssl verify -CAfile "$keys/ca.pem" "$keys/server.pem" "$keys/client.pem" > /dev/null || fail "openssl does not agree"
mkdir "$directory/server"
cp "$keys/ca.pem" "$keys/server.pem" "$keys/server.key" "$directory/server/"

# Starts that a server refuses.
expect 2 "Make certificates (nram keygen DIR --host=NAME-THAT-CLIENTS-DIAL)" \
  "$memserver" --donate=128M --listen=0.0.0.0 --tls-dir=none
expect 1 "ca.pem" "$memserver" --donate=128M --tls-dir="$directory"
expect 2 "contradict each other" "$memserver" --donate=128M --tls-dir="$keys" --allow-unauthenticated
chmod 644 "$directory/server/server.key"
expect 1 "other users may read this private key" "$memserver" --donate=128M --tls-dir="$directory/server"
chmod 600 "$directory/server/server.key"
echo "cn:bob b admin" > "$directory/access"
expect 2 "line 1" "$memserver" --donate=128M --tls-dir="$directory/server" --access="$directory/access"

serve --tls-dir="$directory/server"
expect 0 "total" "$nram" df --pool="$pool" --tls-dir="$keys"
NRAM_TLS_DIR=$keys expect 0 "total" "$nram" df --pool="$pool"
expect 1 "--tls-dir=DIR at the client" "$nram" df --pool="$pool"
expect 1 "the certificates of" "$nram" df --pool="$pool" --tls-dir="$directory"
expect 1 "needs the role operator" "$nram" drain "$pool" --tls-dir="$keys"
# It looks at all swap areas of the machine, and another test may have a faulty one.
NRAM_TLS_DIR=$keys NRAM_POOL=$pool expect 0 "is good for 364 days" sh -c '"$0" doctor || [ $? -eq 1 ]' "$nram"
NRAM_TLS_DIR=$keys expect 1 "1 servers do not answer" "$nram" doctor --pool=127.0.0.1:9
# All doors.
mkdir "$directory/mount"
"$nram" mount "$directory/mount" --pool="$pool" --tls-dir="$keys" > /dev/null
head -c 20000000 /dev/urandom > "$directory/file"
cp "$directory/file" "$directory/mount/file"
cmp "$directory/file" "$directory/mount/file" || fail "the mount has other bytes"
"$nram" umount "$directory/mount" > /dev/null
head -c 60000000 /dev/urandom | base64 > "$directory/lines" # more than its memory
"$nram" sort --memory=48M --pool="$pool" --tls-dir="$keys" "$directory/lines" > "$directory/sorted" || fail "the sort"
LC_ALL=C sort "$directory/lines" | cmp - "$directory/sorted" || fail "the sort has another order"
expect 1 "by a certificate" "$nram" sort --memory=48M --pool="$pool" "$directory/lines"
rm "$directory/lines" "$directory/sorted"

# Others' certificates.
"$nram" keygen "$directory/others" --host=127.0.0.1 > /dev/null
expect 1 "no authority in this side's ca.pem has signed it" "$nram" df --pool="$pool" --tls-dir="$directory/others"
cp "$keys/ca.pem" "$directory/others/ca.pem"
expect 1 "does not know the authority of this side's certificate" \
  "$nram" df --pool="$pool" --tls-dir="$directory/others"
expect 0 "one more client" "$nram" keygen "$directory/bob" --authority="$keys" --client=bob
expect 0 "total" "$nram" df --pool="$pool" --tls-dir="$directory/bob"

# Rules, changed while it serves.
echo "cn:client a user quota=32M" > "$directory/access"
serve --tls-dir="$directory/server" --access="$directory/access"
expect 0 "quota of this client's tenant at 1 of 1 servers: 32.0 MiB, of which 0 B are used" \
  "$nram" df --pool="$pool" --tls-dir="$keys"
"$nram" df --json --pool="$pool" --tls-dir="$keys" |
  jq -e '.total | .quota_bytes == 33554432 and .quota_used_bytes == 0' > /dev/null || fail "the quota in JSON"
expect 1 "rules do not admit this side's certificate" "$nram" df --pool="$pool" --tls-dir="$directory/bob"
echo "cn:bob ops operator" >> "$directory/access"
for ((tries = 0; tries < 100; ++tries)); do
  "$nram" df --pool="$pool" --tls-dir="$directory/bob" > /dev/null 2>&1 && break
  read -rt 0.1 <> <(:) || true
done
expect 0 "accepts no new spans" "$nram" drain "$pool" --tls-dir="$directory/bob"
expect 0 "No regions." "$nram" regions --all-tenants --pool="$pool" --tls-dir="$directory/bob"
expect 1 "needs the role operator" "$nram" regions --all-tenants --pool="$pool" --tls-dir="$keys"

# Renewed: the same names again, and no restart.
expect 0 "new certificates of the existing authority" "$nram" keygen "$keys"
cp "$keys/server.key" "$keys/server.pem" "$directory/server/"
expect 0 "total" "$nram" df --pool="$pool" --tls-dir="$keys"

# A plain server, and a client with certificates.
serve --tls-dir=none
expect 1 "the server does not speak TLS" "$nram" df --pool="$pool" --tls-dir="$keys"
expect 0 "total" "$nram" df --pool="$pool"

# Machines with a secret make certificates that fit, each on its own.
head -c 32 /dev/urandom > "$directory/secret"
chmod 644 "$directory/secret"
expect 1 "other users may read" "$nram" keygen "$directory/one" --secret="$directory/secret" --purpose="job 7"
[ ! -e "$directory/one/client.key" ] || fail "a secret that others may read was used"
chmod 600 "$directory/secret"
for of in one two; do
  "$nram" keygen "$directory/$of" --secret="$directory/secret" --purpose="job 7" --host=127.0.0.1 > /dev/null
done
[ ! -e "$directory/one/ca.key" ] || fail "a derived authority's key was written"
serve --tls-dir="$directory/one"
expect 0 "total" "$nram" df --pool="$pool" --tls-dir="$directory/two"
"$nram" keygen "$directory/three" --secret="$directory/secret" --purpose="job 8" --host=127.0.0.1 > /dev/null
expect 1 "no authority in this side's ca.pem" "$nram" df --pool="$pool" --tls-dir="$directory/three"
grep -q "no authority in this side's ca.pem\|refusing" "$directory/log" || fail "the server's log says nothing"
! grep -q "PRIVATE KEY" "$directory/log" || fail "a key is in the log"
echo PASSED
