# Sourced by the other scripts: installs the packages that they need.

# need PACKAGE...: Debian packages. Installs missing ones if that is allowed, else lists them and exits.
need() {
  local missing=() package
  if ! command -v dpkg-query >/dev/null 2>&1; then
    echo "This is not Debian or Ubuntu: install the equivalents of these packages yourself: $*" >&2
    return 0
  fi
  for package in "$@"; do
    dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q 'install ok installed' || missing+=("$package")
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
  "${sudo[@]}" apt-get update -qq >&2
  if ! DEBIAN_FRONTEND=noninteractive "${sudo[@]}" apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null; then
    echo "apt-get could not install: ${missing[*]}" >&2
    exit 1
  fi
}

need_build_tools() { need g++ cmake ninja-build pkg-config libpcre2-dev libutf8proc-dev nlohmann-json3-dev libcli11-dev libboost-dev; }
need_test_tools() { need libgtest-dev; }
need_fetch_tools() { need python3 python3-pip ca-certificates; }
# clang with libFuzzer, which some distributions have in a package of its own.
need_fuzz_tools() {
  need clang
  compgen -G "$(clang -print-runtime-dir)/libclang_rt.fuzzer-*.a" >/dev/null || need "libclang-rt-$(clang -dumpversion | cut -d. -f1)-dev"
}
