# Sourced by the other scripts: finds or installs what building and running need. Debian and its relatives are set up
# without questions; elsewhere it says exactly what to install.

repository=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

say() { printf '%s\n' "$*" >&2; }
die() { say "$*"; exit 1; }

# Runs as root, with sudo where that is needed.
as_root() {
    if [ "$(id -u)" = 0 ]; then "$@"; elif command -v sudo >/dev/null; then sudo "$@"
    else die "This needs root: run '$*' as root, then start again."; fi
}

install_packages() {
    if ! command -v apt-get >/dev/null; then
        case "$(uname -s)" in
            Darwin) die "Install it with: brew install $2" ;;
            *) die "Install $3 with this system's package manager, then start again." ;;
        esac
    fi
    say "Installing $1 …"
    as_root env DEBIAN_FRONTEND=noninteractive apt-get update -q >/dev/null
    # shellcheck disable=SC2086 # several packages
    as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends $1 >/dev/null
}

# PostgreSQL's server programs, 15 or newer: the same places that pcfarm-server --embedded looks in.
find_postgres() {
    local directory
    for directory in $(command -v initdb | xargs -r dirname) $(pg_config --bindir 2>/dev/null) \
        /usr/lib/postgresql/*/bin /usr/pgsql-*/bin /opt/homebrew/opt/postgresql@*/bin /usr/local/opt/postgresql@*/bin; do
        [ -x "$directory/initdb" ] && [ -x "$directory/postgres" ] || continue
        [ "$("$directory/postgres" --version | sed -E 's/[^0-9]*([0-9]+).*/\1/')" -ge 15 ] && return 0
    done
    return 1
}

ensure_tools() {
    if ! command -v cargo >/dev/null && [ -f "$HOME/.cargo/env" ]; then . "$HOME/.cargo/env"; fi
    command -v cargo >/dev/null || die "Rust's toolchain is missing: install it from https://rustup.rs, then start again."
    command -v cc >/dev/null || install_packages "gcc libc6-dev" gcc "a C linker (gcc or clang)"
    find_postgres || install_packages postgresql "postgresql@15" "PostgreSQL 15 or newer (its server programs)"
    find_postgres || die "PostgreSQL 15 or newer is needed, and what was installed is older or not found."
}

# Builds every program and test, for all scripts: another choice of targets or features would build dependencies again.
# Shows cargo's progress on a terminal; elsewhere only warnings and errors. More arguments go to cargo.
build_all() {
    [ -t 2 ] || set -- --quiet "$@"
    (cd "$repository" && cargo build --workspace --all-targets --all-features --locked "$@")
}

# Everything that tests need beside the toolchain and PostgreSQL. Tests that lack some of it leave themselves out.
ensure_test_tools() {
    ensure_smtp
    ensure_systemd
    ensure_faketime
    ensure_package_checks
    ensure_rest_examples
    ensure_solver
    ensure_wasi
    ensure_display
    ensure_swift
}

# The mail server of the tests.
ensure_smtp() {
    command -v aiosmtpd >/dev/null || [ -x /usr/bin/aiosmtpd ] || install_packages python3-aiosmtpd "pipx && pipx install aiosmtpd" "aiosmtpd (pipx install aiosmtpd)"
}

# What moves a program's clock. Without it, those faults and tests are left out.
ensure_faketime() {
    compgen -G "/usr/lib/*/faketime/libfaketimeMT.so.1" >/dev/null && return 0
    command -v apt-get >/dev/null || return 0
    (install_packages faketime "" "") || say "faketime was not installed: no clock will be moved."
}

# What checks the units. Without it they are not checked.
ensure_systemd() {
    if command -v systemd-analyze >/dev/null || ! command -v apt-get >/dev/null; then return 0; fi
    (install_packages systemd "" "") || say "systemd was not installed: its units will not be checked."
}

# What checks the package, and what the roll-out goes by. Without them those tests are left out.
ensure_package_checks() {
    command -v apt-get >/dev/null || return 0
    command -v lintian >/dev/null || (install_packages lintian "" "") || say "lintian was not installed: the package will not be checked by it."
    { [ -x /usr/sbin/sshd ] && command -v ssh-keygen; } >/dev/null ||
        (install_packages openssh-server "" "") || say "openssh-server was not installed: the roll-out will not be tested."
}

# What the documentation of REST is run with. Without it its examples are left out.
ensure_rest_examples() {
    command -v apt-get >/dev/null || return 0
    { command -v curl && python3 -c 'import requests'; } >/dev/null 2>&1 ||
        (install_packages "curl python3-requests" "" "") || say "curl and python3-requests were not installed: docs/rest.md will not be run."
}

# One of PostgreSQL's programs, by name.
postgres_program() {
    local found
    found=$(for directory in $(command -v initdb | xargs -r dirname) $(pg_config --bindir 2>/dev/null) \
        /usr/lib/postgresql/*/bin /usr/pgsql-*/bin /opt/homebrew/opt/postgresql@*/bin /usr/local/opt/postgresql@*/bin; do
        [ -x "$directory/$1" ] && printf '%s\n' "$directory/$1"
    done | tail -n 1)
    [ -n "$found" ] || die "PostgreSQL's $1 is missing."
    printf '%s\n' "$found"
}

# Schemathesis, which fuzzes REST, in a Python environment of its own.
ensure_schemathesis() {
    local at=${CARGO_TARGET_DIR:-$repository/target}/fuzz-api
    [ -x "$at/venv/bin/schemathesis" ] && return 0
    command -v python3 >/dev/null || install_packages "python3 python3-venv" python3 "Python 3"
    python3 -c 'import ensurepip' 2>/dev/null || install_packages python3-venv python3 "Python's venv"
    mkdir -p "$at"
    python3 -m venv "$at/venv" && "$at/venv/bin/pip" install --quiet --disable-pip-version-check "schemathesis==4.32.5" ||
        die "schemathesis cannot be installed from PyPI, which fuzzing of REST needs."
}

# A C++ compiler, for libFuzzer.
ensure_cxx() {
    command -v c++ >/dev/null || install_packages g++ gcc "a C++ compiler, for libFuzzer"
}

# A tool of the LLVM that rustc is built with; empty if it is missing.
llvm_tool() {
    command -v "$1-$(llvm_major)" || ls "$(rustc --print sysroot)"/lib/rustlib/*/bin/"$1" 2>/dev/null || true
}

llvm_major() { rustc -vV | sed -n 's/^LLVM version: \([0-9]*\).*/\1/p'; }

# The tools that read coverage. They must be of the compiler's version of LLVM.
ensure_coverage_tools() {
    [ -z "$(llvm_tool llvm-cov)" ] || return 0
    local major
    major=$(llvm_major)
    rustup component add llvm-tools >/dev/null 2>&1 ||
        install_packages "llvm-$major" "llvm@$major" "llvm-cov and llvm-profdata of LLVM $major"
    [ -n "$(llvm_tool llvm-cov)" ] && [ -n "$(llvm_tool llvm-profdata)" ] ||
        die "llvm-cov and llvm-profdata of LLVM $major are missing."
}

# The solver of examples/programs. Without it that part of their test is left out.
ensure_solver() {
    if [ -x /usr/bin/minisat ] || ! command -v apt-get >/dev/null; then return 0; fi
    (install_packages minisat "" "") || say "minisat was not installed: the solver's example will not be tested."
}

# What makes modules of C and of Rust for examples/programs. Without it they are not built, and their tests say that they were left out.
ensure_wasi() {
    if command -v rustup >/dev/null && ! rustup target list --installed | grep -qx wasm32-wasip1; then
        say "Installing Rust's target wasm32-wasip1 …"
        rustup --quiet target add wasm32-wasip1 || say "It was not installed: the examples of modules in Rust will not be tested."
    fi
    if { command -v clang && command -v wasm-ld && [ -e /usr/lib/wasm32-wasi/libc.a ]; } >/dev/null; then return 0; fi
    command -v apt-get >/dev/null || return 0
    (install_packages "clang lld wasi-libc libclang-rt-dev-wasm32" "" "") ||
        say "clang and wasi-libc were not installed: the examples of modules in C will not be tested."
}

# Python, which the programs of several other queues are in. Without it they are not measured.
ensure_python() {
    python3 -c 'import ensurepip' 2>/dev/null && return 0
    command -v apt-get >/dev/null || return 0
    (install_packages "python3 python3-venv" "" "") || say "python3 was not installed: other queues in Python will not be measured."
}

# A display for tests of sessions. Without it they are left out.
ensure_display() {
    command -v apt-get >/dev/null || return 0
    { command -v Xvfb && command -v xdotool; } >/dev/null ||
        (install_packages "xvfb xdotool" "" "") || say "xvfb and xdotool were not installed: sessions of X11 will not be tested."
    { command -v sway && command -v wtype; } >/dev/null ||
        (install_packages "sway wtype" "" "") || say "sway and wtype were not installed: sessions of Wayland will not be tested."
    { command -v mutter && command -v dbus-daemon; } >/dev/null ||
        (install_packages "mutter dbus-daemon" "" "") || say "mutter was not installed: sessions of GNOME will not be tested."
}

# A store that speaks S3, for tests of uploads: OpenStack Swift without its services. Without it they are left out.
ensure_swift() {
    if /usr/bin/python3 -c 'import swift.proxy.server' 2>/dev/null || ! command -v apt-get >/dev/null; then return 0; fi
    (install_packages python3-swift "" "") || say "python3-swift was not installed: uploads in a store will not be tested."
}

# Builds programs and shows cargo's progress, after an estimate of the time. Sets $programs, the folder that they are in.
#
#   build_programs PROFILE [OPTIONS AND PACKAGES OF cargo build]
build_programs() {
    local profile=$1
    shift
    programs=$(realpath -m "${CARGO_TARGET_DIR:-$repository/target}")/$profile
    estimate_build "$@"
    cargo build --profile "$profile" --locked "$@"
}

# Core seconds that one crate takes on average, measured from an empty target folder on 2 cores of 2.6 GHz, rounded up.
core_seconds_per_crate=2

estimate_build() {
    local crates built left cores minutes
    crates=$(cargo tree --locked --quiet --edges normal,build --prefix none --no-dedupe "$@" | sort -u | wc -l)
    built=$(find "$programs/.fingerprint" -mindepth 1 -maxdepth 1 2>/dev/null | sed 's/-[0-9a-f]*$//' | sort -u | wc -l)
    left=$((crates > built ? crates - built : 0))
    cores=$(getconf _NPROCESSORS_ONLN)
    minutes=$(((left * core_seconds_per_crate + 60 * cores - 1) / (60 * cores)))
    case $left in
        0) say "Building only the crates that have changed …" ;;
        *) say "Building $left crates: about $minutes minutes with $cores cores. Cargo shows how far it is." ;;
    esac
}

workspace_version() { sed -n '/^\[workspace.package\]/,/^\[/s/^version = "\(.*\)"/\1/p' "$repository/Cargo.toml"; }

# Replaces the lines between two marker lines of a file.
replace_between() {
    local file=$1 first=$2 last=$3 text=$4
    grep -qxF "$first" "$file" && grep -qxF "$last" "$file" || die "$file has no lines '$first' and '$last'."
    FIRST=$first LAST=$last TEXT=$text awk '
        $0 == ENVIRON["LAST"] { inside = 0 }
        !inside { print }
        $0 == ENVIRON["FIRST"] { inside = 1; print ENVIRON["TEXT"] }' "$file" >"$file.new"
    mv "$file.new" "$file"
}
