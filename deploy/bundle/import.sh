#!/usr/bin/env bash
# Verify this offline bundle and load its image into this host's Docker engine.
# Needs bash 4.3, coreutils, openssl, tar and docker; no network, and no write access to the bundle.
set -euo pipefail
# What the environment could hide files with, or change in what is sent and made.
set +f
unset TAR_OPTIONS DOCKER_DEFAULT_PLATFORM
shopt -s globstar dotglob nullglob
export LC_ALL=C

# In braces, so that bash has read all of it before it does anything: a truncated copy does nothing.
{
usage() {
  cat <<'END'
usage: bash import.sh --key cosign.pub [--check-only | --engine-check]
       bash import.sh --unsigned       [--check-only | --engine-check]

Verifies the signature, every checksum and that nothing was added; then loads the image, checks that
the engine got the announced one, and tags it. Nothing is loaded before all is verified.

  --key FILE      public key of whoever made the bundle, from somewhere else than this bundle
  --unsigned      check no signature: the checksums then find damage, but no forgery
  --check-only    verify everything and load nothing; asks no engine
  --engine-check  only the signature, and whether the engine could take the image
  --help

The same by hand, for who does not trust this script: README.txt.

exit 0  the image is there (or, with --check-only and --engine-check: nothing speaks against it)
     1  this script failed in a way that it does not know
     2  wrong arguments, or the key cannot be used
     3  this host lacks a program, or the bundle cannot be read
     4  the signature is missing or is not of this key
     5  the bundle is not what was signed: changed, missing, or added files, or links
     6  the engine does not answer, is too old, or is no Docker engine
     7  too little room for the engine
     8  the engine could not load or tag the image
     9  the engine has loaded another image than the announced one; it was removed again
    10  the image's name is taken by another image
   130  interrupted; what had been loaded by then has no name
END
}

# A name from the medium may hold what a terminal obeys, or a line that looks like one of these.
say() {
  local text=$*
  printf '%s\n' "${text//[[:cntrl:]]/?}" >&2
}
fail() { # CODE WHAT REMEDY
  say "error: $2"
  say "  fix: $3"
  exit "$1"
}
gib() { printf '%d.%02d GiB' $(($1 >> 30)) $((($1 & (1 << 30) - 1) * 100 >> 30)); }

here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd -P)
key='' unsigned='' mode=import
while (($#)); do
  case $1 in
    --key)
      (($# > 1)) || fail 2 "--key needs a file" "bash import.sh --help"
      key=$2
      [[ -n $key ]] || fail 2 "--key needs a file" "bash import.sh --help"
      shift
      ;;
    --unsigned) unsigned=yes ;;
    --check-only | --engine-check)
      [[ $mode == import ]] || fail 2 "--check-only and --engine-check exclude each other" "name one"
      mode=${1#--}
      ;;
    --help | -h)
      usage
      exit 0
      ;;
    *) fail 2 "unknown argument: $1" "bash import.sh --help" ;;
  esac
  shift
done
[[ -z $key || -z $unsigned ]] || fail 2 "--key and --unsigned exclude each other" "name one"
[[ -n $key || -n $unsigned ]] || fail 2 "no key, so nobody knows who made this bundle" \
  "--key FILE with the maker's public key, or --unsigned to do without"

programs=(base64 cat cp df mkdir mktemp realpath rm sha256sum sleep stat tail tar)
[[ -z $key ]] || programs+=(openssl)
[[ $mode == check-only ]] || programs+=(docker)
for program in "${programs[@]}"; do
  command -v "$program" >/dev/null || fail 3 "$program is not installed" "install it"
done

if [[ -n $key ]]; then
  [[ -f $key && -r $key ]] || fail 2 "the key cannot be read: $key" "name the file of the public key"
  key=$(realpath -- "$key")
  # Whoever forges a bundle puts a key of their own beside it.
  [[ $key != "$here"/* ]] || fail 2 "the key lies in the bundle, so it proves nothing" \
    "name a key that came another way"
  openssl pkey -pubin -in "$key" -noout 2>/dev/null ||
    fail 2 "not a public key in PEM form: $key" "name the maker's cosign.pub"
fi

scratch=$(mktemp -d) || fail 3 "no temporary folder" "free space in ${TMPDIR:-/tmp}, or set TMPDIR"
load=''
finish() {
  # The whole group: an orphaned `docker load` would go on.
  [[ -z $load ]] || kill -- "-$load" 2>/dev/null || :
  rm -rf -- "$scratch"
}
trap finish EXIT
trap 'say "interrupted; what was loaded by now has no name"; exit 130' INT TERM HUP

# -- the signature, over a copy: what is verified is what is read afterwards -----------------------
for name in SHA256SUMS SHA256SUMS.sig; do
  [[ $name == SHA256SUMS || -n $key ]] || continue
  [[ ! -L $here/$name ]] || fail 5 "$name is a link" "get the bundle again"
  [[ -f $here/$name ]] || {
    [[ $name == SHA256SUMS ]] || fail 4 "the bundle has no signature (SHA256SUMS.sig)" \
      "get a signed bundle, or do without by --unsigned"
    fail 3 "there is no SHA256SUMS in $here" "run import.sh where it lies in the bundle"
  }
  cp -- "$here/$name" "$scratch/$name" || fail 3 "$name cannot be read" "see above"
done
if [[ -n $key ]]; then
  base64 -d "$scratch/SHA256SUMS.sig" >"$scratch/signature" 2>/dev/null ||
    fail 4 "SHA256SUMS.sig is not a signature" "get the bundle again"
  openssl dgst -sha256 -verify "$key" -signature "$scratch/signature" "$scratch/SHA256SUMS" \
    >/dev/null 2>&1 || fail 4 "the signature is not of this key: $key" \
    "ask the maker for the right key; if it is the right one, trust nothing of this bundle"
  say "signature: good, by $key"
else
  say "signature: NOT checked (--unsigned)"
fi

# -- what is listed, and what is there -------------------------------------------------------------
declare -A sum=()
paths=()
segment='[A-Za-z0-9_.][A-Za-z0-9_.+-]*'
entry="^([0-9a-f]{64})  ($segment(/$segment)*)\$"
while IFS= read -r line || [[ -n $line ]]; do
  if [[ ! $line =~ $entry ]]; then fail 5 "SHA256SUMS has a malformed line" "get the bundle again"; fi
  path=${BASH_REMATCH[2]}
  if [[ /$path/ == */./* || /$path/ == */../* || -n ${sum[$path]-} ]]; then
    fail 5 "SHA256SUMS lists what it must not: $path" "get the bundle again"
  fi
  sum[$path]=${BASH_REMATCH[1]}
  paths+=("$path")
done <"$scratch/SHA256SUMS"
small=(oci-layout index.json manifest.json) # what an engine reads to know what to load
for path in bundle.conf import.sh "${small[@]/#/image/}"; do
  [[ -n ${sum[$path]-} ]] || fail 5 "SHA256SUMS does not list $path" "get the bundle again"
done

# `**` does not go through links, and a link is refused itself.
for found in "$here"/**; do
  path=${found#"$here"/}
  [[ -n $path ]] || continue
  [[ ! -L $found ]] || fail 5 "a link is in the bundle: $path" "get the bundle again"
  [[ ! -d $found ]] || continue
  [[ -f $found ]] || fail 5 "neither file nor folder: $path" "get the bundle again"
  [[ -n ${sum[$path]-} || $path == SHA256SUMS || $path == SHA256SUMS.sig ]] ||
    fail 5 "a file that is not listed is in the bundle: $path" "remove it, if you know how it got there"
done
for path in "${paths[@]}"; do
  [[ -f $here/$path ]] || fail 5 "a listed file is missing: $path" "copy the bundle again"
done
stat -c %s -- "${paths[@]/#/$here/}" >"$scratch/sizes" || fail 3 "sizes cannot be read" "see above"
mapfile -t sizes <"$scratch/sizes"
total=0 image_bytes=0
blobs=()
for i in "${!paths[@]}"; do
  path=${paths[i]}
  total=$((total + sizes[i]))
  [[ $path == image/* ]] || continue
  image_bytes=$((image_bytes + sizes[i]))
  [[ " ${small[*]} " == *" ${path#image/} "* ]] || blobs+=("${path#image/}")
done

# -- what the image is, from copies that nobody else can change -------------------------------------
mkdir "$scratch/image"
for path in bundle.conf "${small[@]/#/image/}"; do
  cp -- "$here/$path" "$scratch/$path" || fail 3 "$path cannot be read" "see above"
  [[ $(sha256sum <"$scratch/$path") == "${sum[$path]}  -" ]] ||
    fail 5 "changed: $path" "copy the bundle again"
done
declare -A conf=()
while IFS='=' read -r name value; do
  [[ -z $name || $name == '#'* ]] || conf[$name]=$value
done <"$scratch/bundle.conf"
[[ ${conf[format]-} == 1 ]] ||
  fail 5 "the bundle has format ${conf[format]-none}, this script knows 1" "use the bundle's own script"
hash='^sha256:[0-9a-f]{64}$'
reference=${conf[name]-} config=${conf[config]-} manifest=${conf[manifest]-} unpacked=${conf[unpacked_bytes]-}
if [[ ! $config =~ $hash || ! $manifest =~ $hash || ! $unpacked =~ ^[1-9][0-9]{0,14}$ ||
  ! $reference =~ ^[a-z0-9][a-z0-9._/-]*:[A-Za-z0-9_][A-Za-z0-9_.-]*$ ]]; then
  fail 5 "bundle.conf does not say which image this is" "get the bundle again"
fi

# -- the engine: asked before the long part, so that a refusal comes early --------------------------
announced='' known='' present=''
id_of() { docker image inspect --format '{{.Id}}' -- "$1" 2>/dev/null || :; }
# The containerd store knows an image by its ID also when a load broke off and its layers are missing:
# only what a container can be made of is there.
usable() {
  local container
  container=$(docker container create --pull never --network none -- "$1" x 2>"$scratch/error") &&
    docker container rm -- "$container" >/dev/null
}
if [[ $mode != check-only ]]; then
  # `docker info` alone exits with 0 in some releases when no engine answers.
  { docker version --format '{{.Server.Version}}' &&
    docker info --format '{{.DockerRootDir}}|{{.DriverStatus}}'; } \
    >"$scratch/engine" 2>"$scratch/error" || fail 6 \
    "no Docker engine answers: $(tail -n 1 -- "$scratch/error")" \
    "start it, or run as a user who may use it (the group docker, or root)"
  { read -r version && IFS='|' read -r root driver; } <"$scratch/engine" || :
  if [[ ! $version =~ ^([0-9]+)\. || ${root-} != /* ]]; then
    fail 6 "what answers is not a Docker engine" "install Docker Engine 23 or newer"
  fi
  # Layers are zstd, which the engine unpacks since 23.0.
  ((10#${BASH_REMATCH[1]} >= 23)) || fail 6 "the engine is too old: $version" "install 23 or newer"
  # An image's ID is its configuration's digest, in the containerd store its manifest's.
  announced=$config
  [[ $driver != *io.containerd.snapshotter* ]] || announced=$manifest
  known=$(id_of "$announced")
  [[ -z $known ]] || ! usable "$announced" || present=$known
  named=$(id_of "$reference")
  [[ -z $named || $named == "$announced" ]] || fail 10 \
    "$reference is another image on this engine: $named" \
    "docker image rm $reference, if nothing needs it; then run this again"
  if [[ -z $present ]]; then
    # The engine keeps what is sent to it until it has unpacked it.
    need=$((image_bytes + unpacked + (256 << 20)))
    endpoint=$(docker context inspect --format '{{.Endpoints.docker.Host}}' 2>/dev/null || :)
    free=''
    [[ $endpoint != unix://* ]] || free=$(df --output=avail -B1 -- "$root" 2>/dev/null || :)
    free=${free##*[!0-9]}
    if [[ -z $free ]]; then
      say "room: not checked, the engine's folder cannot be seen from here; it takes $(gib "$need")"
    elif ((free < need)); then
      fail 7 "the engine needs $(gib "$need") in $root, $(gib "$free") are free" \
        "free space there (docker system df), then run this again"
    fi
  fi
  say "engine: $version, $([[ -n $present ]] && echo "has the image" || echo "ready for the image")"
  [[ $mode != engine-check ]] || exit 0
fi

# -- every checksum --------------------------------------------------------------------------------
say "checking ${#paths[@]} files, $(gib "$total")"
seen=0
for i in "${!paths[@]}"; do
  path=${paths[i]}
  got=$(sha256sum <"$here/$path") || fail 3 "cannot be read: $path" "copy the bundle again"
  [[ $got == "${sum[$path]}  -" ]] || fail 5 "changed: $path" "copy the bundle again"
  seen=$((seen + sizes[i]))
  ((sizes[i] < 64 << 20)) || say "  $((i + 1)) of ${#paths[@]} files, $(gib "$seen") of $(gib "$total")"
done
say "files: all as listed, nothing added"
if [[ $mode == check-only ]]; then
  say "the bundle is whole: $reference, manifest $manifest"
  exit 0
fi

# -- load ------------------------------------------------------------------------------------------
if [[ -z $present ]]; then
  say "loading $(gib "$image_bytes") into the engine, $(gib "$unpacked") unpacked: minutes"
  docker image ls --all --quiet --no-trunc >"$scratch/before"
  # Not the folder but what was listed; the names of images (manifest.json) from the copy, so that no
  # other image of this host can lose its name. In a group of its own, so that it can be ended.
  set -m
  (tar -cf - -C "$scratch/image" "${small[@]}" -C "$here/image" "${blobs[@]}" |
    docker load --quiet) >"$scratch/loaded" 2>"$scratch/error" &
  load=$!
  set +m
  begin=$SECONDS next=15
  while kill -0 "$load" 2>/dev/null; do
    sleep 0.2
    ((SECONDS - begin < next)) || {
      say "  loading, $((SECONDS - begin)) s"
      next=$((next + 15))
    }
  done
  code=0
  wait "$load" || code=$?
  load=''
  # The engine checks each layer against the configuration, and the ID is the configuration's digest
  # or the manifest's: with this ID it is the announced image, whatever happened to the files.
  others=0
  while IFS= read -r line; do
    if [[ $line =~ ^Loaded\ image(\ ID)?:\ (.+)$ ]]; then
      got=$(id_of "${BASH_REMATCH[2]}")
      [[ $got == "$announced" ]] && continue
      others=$((others + 1))
      # Unless it was there before: then it is not ours to remove.
      [[ $'\n'$(<"$scratch/before")$'\n' == *$'\n'"$got"$'\n'* ]] ||
        docker image rm -- "${BASH_REMATCH[2]}" >/dev/null 2>&1 || :
    fi
  done <"$scratch/loaded"
  ((others == 0)) || fail 9 "the engine has loaded another image than $announced; removed again" \
    "the files changed while they were read: check the medium, then copy the bundle again"
  if ((code != 0)); then
    # What it was given of the image until then; not what was there before.
    [[ -n $known ]] || docker image rm -- "$announced" >/dev/null 2>&1 || :
    fail 8 "docker load failed (exit $code): $(tail -n 1 -- "$scratch/error")" \
      "read the engine's log (journalctl -u docker), check its disk, then run this again"
  fi
  [[ $(id_of "$announced") == "$announced" ]] || fail 9 \
    "the engine does not have $announced after loading" "read the engine's log (journalctl -u docker)"
  usable "$announced" || {
    [[ -n $known ]] || docker image rm -- "$announced" >/dev/null 2>&1 || :
    fail 8 "no container can be made of the image: $(tail -n 1 -- "$scratch/error")" \
      "read the engine's log (journalctl -u docker), check its disk, then run this again"
  }
fi
docker image tag -- "$announced" "$reference" 2>"$scratch/error" || fail 8 \
  "the image cannot be tagged: $(tail -n 1 -- "$scratch/error")" "read the engine's log"
[[ $(id_of "$reference") == "$announced" ]] || fail 9 "$reference is not $announced" \
  "somebody else tags images on this engine: run this again"

say "$([[ -n $present ]] && echo "already there" || echo "loaded"): $reference"
cat <<END
$reference
  id        $announced
  manifest  $manifest

Try it:     docker run --rm $announced version
Serve it:   mkdir -p /srv/ddtree && cp -R $(printf '%q' "$here")/serve/. /srv/ddtree/ && cd /srv/ddtree
            cp env.example .env         # then name your models in .env
            python3 deploy/appliance.py upgrade $announced
            # or: set DDTREE_IMAGE=$announced in .env, then docker compose up -d --wait
END
exit 0
}
