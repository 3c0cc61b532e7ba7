#!/bin/sh
# Brings cross compilers into an image of Debian or Ubuntu that is emulated: the programs that gcc starts (cc1plus, as,
# ld), made for the machine that emulates. With COMPILER_PATH=/opt/cross-compilers/bin gcc starts these, at full speed.
#     cross-compilers.sh MACHINE            the one that emulates: x86_64, aarch64
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

# An apt of that machine, which has nothing installed. Of Ubuntu, it has an archive of its own.
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
  other_apt install --download-only --no-install-recommends "g++-$version-$(echo "$triplet" | tr _ -)" ||
    echo "gcc $version stays emulated: the archive has no cross compiler of it" >&2
done
# Without what programs are linked with: this system's own is taken.
find "$work/archives" -name '*.deb' ! -name '*_all.deb' -exec dpkg-deb --extract {} "$root" \;
rm -rf "$work" "${root:?}/etc" "${root:?}/usr/share"

# Their libraries and the program that loads these have one place in every system.
libraries=/usr/lib/$1-linux-gnu
mkdir -p "$root" "$libraries" "$(dirname "$loader")" /usr/local/include
find "$root" -path "*/lib/$1-linux-gnu/*.so*" -exec cp --no-clobber --no-dereference {} "$libraries/" \;
[ -e "$loader" ] || ln -sf "$libraries/$(basename "$loader")" "$loader"

# gcc finds them by their names here, and they the headers of this system's gcc by these links.
mkdir -p "$root/bin" "/usr/$triplet/include/c++" "/usr/lib/gcc-cross/$triplet"
ln -sfn . "/usr/local/include/$triplet"
for program in as ld ld.bfd ld.gold; do
  ln -sfn "$root/usr/bin/$triplet-$program" "$root/bin/$program"
done
for compiler in /usr/bin/g++-[0-9]*; do
  version=${compiler#*g++-}
  programs=$root/bin/$triplet/$version
  mkdir -p "$programs"
  find "$root"/usr/lib*/gcc-cross/"$triplet/$version" -maxdepth 1 \
    \( -name 'cc1*' -o -name collect2 -o -name 'lto*' -o -name liblto_plugin.so \) -exec ln -sf {} "$programs/" \; || true
  ln -sfn "/usr/include/c++/$version" "/usr/$triplet/include/c++/$version"
  ln -sfn "/usr/include/$triplet/c++/$version" "/usr/include/c++/$version/$triplet"
  ln -sfn "/usr/lib/gcc/$triplet/$version" "/usr/lib/gcc-cross/$triplet/$version"
done

printf '#include <vector>\nint main() { return std::vector<int>(1)[0]; }\n' >"$root/trial.cpp"
export COMPILER_PATH="$root/bin"
taken=$(g++ -print-prog-name=cc1plus)
if [ "${taken#"$COMPILER_PATH"}" = "$taken" ] || ! g++ "$root/trial.cpp" -o "$root/trial" || ! "$root/trial"; then
  echo "all compilers stay emulated: what the archive has of them does not work here" >&2
  rm -rf "$COMPILER_PATH"
fi
