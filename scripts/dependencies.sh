# Sourced by the other scripts: installs what they need, and says in one sentence what could not be had.

# show_help: prints the comment at the top of the script that calls it.
show_help() { sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0"; }

# need PACKAGE...: Debian packages. Installs missing ones if that is allowed, else lists them and exits.
need() {
  local missing=() package installed
  if ! command -v dpkg-query >/dev/null 2>&1; then
    echo "This is not Debian or Ubuntu: install the equivalents of these packages yourself: $*" >&2
    return 0
  fi
  installed=$'\n'$(dpkg-query -W -f='${Package} ${Status}\n' "$@" 2>/dev/null || true)$'\n'
  for package in "$@"; do
    [[ $installed == *$'\n'"$package install ok installed"$'\n'* ]] || missing+=("$package")
  done
  [ ${#missing[@]} -eq 0 ] && return 0
  local sudo=()
  if [ "$(id -u)" -ne 0 ]; then
    if command -v sudo >/dev/null 2>&1 && sudo -n true 2>/dev/null; then
      sudo=(sudo)
    else
      echo "Packages are missing, and their installation needs root:" >&2
      printf '  %s\n' "${missing[@]}" >&2
      echo "Run: sudo apt-get install ${missing[*]}" >&2
      exit 1
    fi
  fi
  echo "Installing ${missing[*]}" >&2
  local log
  log=$(mktemp)
  "${sudo[@]}" apt-get update -qq >"$log" 2>&1 || true  # what it did not find is an error of the installation
  if ! DEBIAN_FRONTEND=noninteractive "${sudo[@]}" apt-get install -y -qq --no-install-recommends "${missing[@]}" >>"$log" 2>&1; then
    if grep -qE 'Temporary failure|Could not (connect|resolve)|Connection (failed|refused|timed out)|Network is unreachable' "$log"; then
      echo "apt-get could not install ${missing[*]}: its servers do not answer (is there a network?)" >&2
    else
      echo "apt-get could not install ${missing[*]}:" >&2
      grep -E '^E:' "$log" >&2 || tail -n 5 "$log" >&2
    fi
    rm -f "$log"
    exit 1
  fi
  rm -f "$log"
}

build_tools=(g++ cmake ninja-build pkg-config libpcre2-dev libutf8proc-dev nlohmann-json3-dev libcli11-dev libboost-dev libedit-dev)
test_tools=(libgtest-dev python3)
fetch_tools=(python3 python3-pip ca-certificates)
need_build_tools() { need "${build_tools[@]}"; }
need_test_tools() { need "${test_tools[@]}"; }
need_fetch_tools() { need "${fetch_tools[@]}"; }
# clang with its sanitizers and libFuzzer, which some distributions have in a package of its own.
need_clang() {
  need clang lld
  compgen -G "$(clang -print-runtime-dir)/libclang_rt.fuzzer-*.a" >/dev/null || need "libclang-rt-$(clang -dumpversion | cut -d. -f1)-dev"
}
# has_gpu: there is a GPU that CUDA can use.
has_gpu() { nvidia-smi -L 2>/dev/null | grep -q GPU; }
# All that the scripts of CI would ask for one after another.
need_everything() {
  need "${build_tools[@]}" "${test_tools[@]}" "${fetch_tools[@]}" python3-venv clang lld
  need_clang
}

# lock FILE: waits while another script holds it. The end of this one frees it.
lock() {
  mkdir -p "$(dirname -- "$1")"
  exec 9>"$1"
  flock --nonblock 9 || { echo "Waiting for another script that holds $1" >&2 && flock 9; }
}

# pip_with_hashes WHAT PYTHON ARGUMENT...: pip over a requirements file with hashes. Only wheels, and only those whose hash the file has:
# nothing of a package runs, or is even built, before it was compared.
pip_with_hashes() {
  local what=$1 python=$2 log
  shift 2
  log=$(mktemp)
  if "$python" -m pip "$@" --require-hashes --only-binary :all: --quiet --disable-pip-version-check --retries 1 >"$log" 2>&1; then
    rm -f "$log"
    return 0
  fi
  if grep -qE 'Retrying|NewConnectionError|ConnectTimeout|ReadTimeout|Max retries' "$log"; then
    echo "$what cannot be downloaded: the package index does not answer (is there a network?)" >&2
  else
    echo "$what cannot be downloaded:" >&2
    grep -v '^WARNING: Retrying' "$log" >&2
  fi
  rm -f "$log"
  return 1
}

# python_environment FOLDER REQUIREMENTS WHAT [PIP OPTIONS...]: an environment with these packages; made anew when the file has changed.
python_environment() {
  _is_made() { [ -x "$1/bin/python" ] && cmp -s "$2" "$1/requirements.txt"; }
  _is_made "$1" "$2" && return 0
  need python3 python3-venv ca-certificates
  lock "$1.lock"
  _is_made "$1" "$2" && return 0
  echo "Installing $3 in $1" >&2
  python3 -m venv --clear "$1" >&2
  pip_with_hashes "$3" "$1/bin/python" install -r "$2" "${@:4}" || return 1
  cp "$2" "$1/requirements.txt"
}
