#!/bin/sh
# Brings cross compilers into an image of Debian or Ubuntu that runs emulated: the programs that gcc
# starts (cc1plus, as, ld), made for the machine that emulates the image. They compile for the image
# and run at full speed. With COMPILER_PATH=/opt/cross-compilers/bin gcc starts them.
#
# Usage: cross-compilers.sh MACHINE         the machine that emulates: x86_64 or aarch64
set -eu
root=/opt/cross-compilers
work=$(mktemp -d)
triplet=$(gcc -dumpmachine)
case $1 in
  x86_64)
    machine=amd64
    loader=/lib64/ld-linux-x86-64.so.2
    archive='s#ports\.ubuntu\.com/ubuntu-ports#archive.ubuntu.com/ubuntu#'
    ;;
  aarch64)
    machine=arm64
    loader=/lib/ld-linux-aarch64.so.1
    archive='s#\(archive\|security\)\.ubuntu\.com/ubuntu#ports.ubuntu.com/ubuntu-ports#'
    ;;
  *)
    echo "torchmill: Debian has no cross compilers that run on $1" >&2
    exit 1
    ;;
esac

# apt for the other machine, as if nothing were installed on it. Ubuntu has a separate archive for
# each of the two machines.
mkdir -p "$work/lists/partial" "$work/archives/partial"
cp -R /etc/apt "$work/apt"
find "$work/apt" \( -name '*.list' -o -name '*.sources' \) -exec sed -i "$archive" {} +
: >"$work/status"
other_apt() {
  apt-get --quiet --yes -o APT::Architecture="$machine" -o APT::Architectures::="$machine" \
    -o APT::Sandbox::User=root -o Dir::Etc="$work/apt" -o Dir::State::lists="$work/lists" \
    -o Dir::State::status="$work/status" -o Dir::Cache::archives="$work/archives" \
    -o Dir::Cache::pkgcache= -o Dir::Cache::srcpkgcache= "$@"
}
other_apt update
for compiler in /usr/bin/g++-[0-9]*; do
  version=${compiler#*g++-}
  package=g++-$version-$(echo "$triplet" | tr _ -)
  other_apt install --download-only --no-install-recommends "$package" ||
    echo "gcc $version stays emulated: the archive has no cross compiler of it" >&2
done
# Not the packages for all machines: they have headers and libraries, which this system has itself.
find "$work/archives" -name '*.deb' ! -name '*_all.deb' -exec dpkg-deb --extract {} "$root" \;
rm -rf "$work" "${root:?}/etc" "${root:?}/usr/share"

# The libraries of the cross compilers, and the program that loads these libraries, have the same
# paths in every system.
libraries=/usr/lib/$1-linux-gnu
mkdir -p "$root" "$libraries" "$(dirname "$loader")" /usr/local/include
find "$root" -path "*/lib/$1-linux-gnu/*.so*" \
  -exec cp --no-clobber --no-dereference {} "$libraries/" \;
[ -e "$loader" ] || ln -sf "$libraries/$(basename "$loader")" "$loader"

# gcc finds the cross compilers by the names of these links, and the cross compilers find by other
# links the headers of this system's gcc.
mkdir -p "$root/bin" "/usr/$triplet/include/c++" "/usr/lib/gcc-cross/$triplet"
ln -sfn . "/usr/local/include/$triplet"
for program in as ld ld.bfd ld.gold; do
  ln -sfn "$root/usr/bin/$triplet-$program" "$root/bin/$program"
done
for compiler in /usr/bin/g++-[0-9]*; do
  version=${compiler#*g++-}
  programs=$root/bin/$triplet/$version
  mkdir -p "$programs"
  # This gcc may have no cross compiler: then there is no such folder.
  find "$root"/usr/lib*/gcc-cross/"$triplet/$version" -maxdepth 1 \
    \( -name 'cc1*' -o -name collect2 -o -name 'lto*' -o -name liblto_plugin.so \) \
    -exec ln -sf {} "$programs/" \; || true
  ln -sfn "/usr/include/c++/$version" "/usr/$triplet/include/c++/$version"
  ln -sfn "/usr/include/$triplet/c++/$version" "/usr/include/c++/$version/$triplet"
  ln -sfn "/usr/lib/gcc/$triplet/$version" "/usr/lib/gcc-cross/$triplet/$version"
done

# If a trial fails, the links are removed, and gcc starts its own programs again.
printf '#include <vector>\nint main() { return std::vector<int>(1)[0]; }\n' >"$root/trial.cpp"
export COMPILER_PATH="$root/bin"
compiler=$(g++ -print-prog-name=cc1plus)
if [ "${compiler#"$COMPILER_PATH"}" = "$compiler" ] ||
  ! g++ "$root/trial.cpp" -o "$root/trial" || ! "$root/trial"; then
  echo "all compilers stay emulated: what the archive has of them does not work here" >&2
  rm -rf "$COMPILER_PATH"
fi
