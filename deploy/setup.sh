#!/bin/bash
# deploy/setup.sh [--check | --dev]   installs what is missing, on Debian 12, from
# Debian's packages alone; does nothing where all is there. Without an argument: what
# ./demo needs to build and run. --check: also what ./check needs. --dev: also
# clang-tidy, clangd and gdb.
set -euo pipefail

packages=(
  bazel-bootstrap          # Bazel 4.2.3, with the JDK and g++ that it needs
  pkg-config
  libgrpc++-dev            # brings c-ares and re2, but not protobuf
  libabsl-dev
  libprotobuf-dev
  protobuf-compiler protobuf-compiler-grpc # protoc, grpc_cpp_plugin, grpc_python_plugin
  libucx-dev
  prometheus-cpp-dev libcivetweb-dev
  libpcre2-dev
  nlohmann-json3-dev
  libgtest-dev libgmock-dev libbenchmark-dev
  curl                     # reads /metrics
)
case ${1:-} in
  "") ;;
  --check | --dev)
    packages+=(
      clang lld libclang-rt-14-dev # the digest under a second compiler
      clang-format                 # tests/tidy
      python3 python3-grpcio python3-protobuf python3-yaml
    )
    [[ $1 == --check ]] || packages+=(clang-tidy clangd gdb)
    ;;
  *)
    echo "usage: deploy/setup.sh [--check | --dev]" >&2
    exit 2
    ;;
esac

missing=()
for package in "${packages[@]}"; do
  dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null | grep -qx installed || missing+=("$package")
done
if ((${#missing[@]})); then
  echo "installing: ${missing[*]}"
  sudo=()
  if [[ $(id -u) != 0 ]]; then
    command -v sudo >/dev/null || {
      echo "as root, run: apt-get install --no-install-recommends ${missing[*]}" >&2
      exit 1
    }
    sudo=(sudo)
  fi
  # In the environment of apt itself: sudo drops ours.
  "${sudo[@]}" apt-get update -q
  "${sudo[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends "${missing[@]}"
fi

# Debian's build names its version "no_version"; the package says which it is.
version=$(dpkg-query -W -f='${Version}' bazel-bootstrap)
[[ $version == 4.* ]] || {
  echo "bazel-bootstrap $version: this workspace is made for 4.2.3, as in Debian 12" >&2
  exit 1
}
